"""The mistakes of a first day: each ends in one sentence that names the key and the way out, and leaves nothing."""

import importlib
import sys

import pytest

FILES = {
    "mine.py": "number = 3\n\n\ndef f(agent, x):\n    return 0.0\n\n\ndef broken(agent, x):\n    return 1 / 0\n",
    "space.yaml": "rate: {type: float, lower: 1e-4, upper: 1, log: true}\n",
    "bad.yaml": "a: {type: float, lower: 1\n",
}
# command line, and what its sentence says
MISTAKES = [
    ("run fig2c", "settings read key=value, got 'fig2c': python -m runners.sweep experiment=fig2c"),
    ("run --seed 3", "unknown option '--seed'; settings have no dashes: seed=VALUE"),
    (
        "run algorithm=a,b",
        "algorithm has several values: -m runs them one after another, python -m runners.sweep side by side; a",
    ),
    (
        "run algorithm=ts,dp_fts",
        "algorithm has several values: -m runs them one after another, python -m runners.sweep side by side; a",
    ),
    (
        "run problem=botorch problem.function=Hartman",
        "problem.function must be an unconstrained synthetic test function of BoTorch, such as Hartmann, got",
    ),
    (
        'run problem=custom problem.function=mine:f problem.lower=["a",0] problem.upper=[1,1]',
        "problem.lower must be a list of finite numbers, one per axis, got ['a', 0]",
    ),
    ("run seed 3", "settings read key=value, got 'seed': seed=VALUE"),
    ("run -seed=3", "unknown option '-seed=3'; settings have no dashes: seed=3"),
    ("run --rounds=5", "unknown option '--rounds=5'; settings have no dashes: rounds=5"),
    ("run rounds", "settings read key=value, got 'rounds': rounds=VALUE"),
    ("run rounds=", "rounds must be an integer of at least 1, got ''"),
    ("run rounds=ten", "rounds must be an integer of at least 1, got 'ten'"),
    ("run rounds=2.5", "rounds must be an integer of at least 1, got 2.5"),
    ("run rounds=-1", "rounds must be an integer of at least 1, got -1"),
    ("run problem=landmines", "unknown problem 'landmines': choose one of"),
    ("run algorithm=dpftsde", "unknown algorithm 'dpftsde': choose one of"),
    ("run algorithm=DP_FTS_DE", "unknown algorithm 'DP_FTS_DE': choose one of"),
    ("run n_agents=20", "unknown override 'n_agents' (did you mean 'problem.n_agents'?)"),
    ("run agents=20", "unknown override 'agents' (did you mean 'problem.n_agents'?)"),
    ("run q=0.3", "unknown override 'q' (did you mean 'privacy.q'?)"),
    ("run epsilon=1", "unknown override 'epsilon' (did you mean 'privacy.epsilon' or 'privacy.budget.epsilon'?)"),
    ("run privacy.eps=1", "unknown override 'privacy.eps' (did you mean 'privacy.epsilon'?)"),
    ("run privacy.epsilon=0", "privacy.epsilon must be a finite number above 0, got 0"),
    ("run privacy.epsilon=-1", "privacy.epsilon must be a finite number above 0, got -1"),
    ("run privacy.epsilon=one", "privacy.epsilon must be a finite number above 0, got 'one'"),
    ("run privacy.epsilon=1 privacy.z=2", "privacy.z must be left out where privacy.epsilon=1 determines it, got 2"),
    ("run privacy.delta=0", "privacy.delta must lie in (0, 1), got 0"),
    ("run privacy.delta=2", "privacy.delta must lie in (0, 1), got 2"),
    ("run privacy.z=inf", "privacy.z (noise_multiplier) must be a finite number of at least 0, got inf"),
    ("run privacy.z=nan", "privacy.z (noise_multiplier) must be a finite number of at least 0, got nan"),
    ("run privacy.q=0", "privacy.q (sampling_probability) must lie in (0, 1], got 0"),
    ("run privacy.q=35%", "privacy.q (sampling_probability) must lie in (0, 1], got '35%'"),
    ("run privacy.S=-1", "privacy.S (clip_norm) must be a finite number above 0, got -1"),
    ("run privacy.rng=random", "privacy.rng must be one of 'seeded', 'os', got 'random'"),
    (
        "run privacy.accountant=PLD",
        "privacy.accountant must be one of 'moments', 'rdp', 'pld', 'fixed_size', 'gdp', got 'PLD'",
    ),
    ("run privacy.accountants=pld", "privacy.accountants must be a list of names, such as [pld,rdp], got 'pld'"),
    ("run privacy.noise=gaussian", "privacy.noise is a group of files: choose with privacy/noise=gaussian"),
    ("run privacy/noise=laplace", "unknown privacy/noise 'laplace': choose one of discrete, gaussian"),
    ("run privacy/noise=discrete", "privacy/noise=discrete needs privacy.rng=os, got 'seeded': its noise has no seed"),
    ("run algorithm.P=0", "algorithm.P must be an integer of at least 1, got 0"),
    ("run algorithm.P=2.5", "algorithm.P must be an integer of at least 1, got 2.5"),
    ("run algorithm.P=300", "algorithm.P must be at most the number of agents 200, got 300"),
    ("run algorithm.M=0", "algorithm.M (n_features) must be an integer of at least 1, got 0"),
    ("run algorithm.M=-5", "algorithm.M (n_features) must be an integer of at least 1, got -5"),
    ("run algorithm.message=median", "algorithm.message must be one of 'sample', 'mean', 'scores', got 'median'"),
    (
        "run algorithm.own_gp.kernel=matern",
        "algorithm.own_gp.kernel must be one of 'rbf', 'matern32', 'matern52', got 'matern'",
    ),
    (
        "run algorithm.own_gp.kernel=matern52",
        "algorithm.own_draw.method must be gpytorch for own_gp.kernel=matern52, got 'exact'",
    ),
    (
        "run algorithm.own_draw.method=exact problem=branin",
        "algorithm.own_draw.method 'exact' needs a one-dimensional grid, use 'rff' here",
    ),
    ("run algorithm.momentum=2", "algorithm.momentum must lie in [0, 1), got 2"),
    (
        "run weights=softmin",
        "unknown weights 'softmin': choose one of power, softmax, uniform (did you mean 'softmax'?)",
    ),
    ("run problem=custom", "problem.function must be given"),
    (
        "run problem=custom problem.function=mine:f",
        "problem.lower and upper, or a space of named parameters, must be given",
    ),
    (
        "run problem=custom problem.function=mine problem.lower=[0] problem.upper=[1]",
        "problem.function must read 'package.module:name', got 'mine'",
    ),
    (
        "run problem=custom problem.function=mine:g problem.lower=[0] problem.upper=[1]",
        "problem.function 'mine:g' cannot be imported: module 'mine' has no attribute 'g'",
    ),
    (
        "run problem=custom problem.function=nowhere:f problem.lower=[0] problem.upper=[1]",
        "problem.function 'nowhere:f' cannot be imported: No module named 'nowhere'",
    ),
    (
        "run problem=custom problem.function=mine:number problem.lower=[0] problem.upper=[1]",
        "problem.function 'mine:number' is not callable",
    ),
    (
        "run problem=custom problem.function=mine.py:f problem.lower=[0] problem.upper=[1]",
        "problem.function 'mine.py:f' cannot be imported: No module named 'mine.py'; 'mine' is not a package",
    ),
    (
        "run problem=custom problem.function=mine:f problem.lower=[0] problem.upper=[1,1]",
        "problem.lower must have as many values as upper, one per axis, got (0.0,) and (1.0, 1.0)",
    ),
    (
        "run problem=custom problem.function=mine:f problem.lower=[1] problem.upper=[0]",
        "problem.lower must be below upper on every axis, got (1.0,) and (0.0,)",
    ),
    (
        "run problem=custom problem.function=mine:f problem.lower=0 problem.upper=1",
        "problem.lower must be a list of finite numbers, one per axis, got 0",
    ),
    (
        "run problem=custom problem.function=mine:f problem.lower=[0] problem.upper=[.inf]",
        "problem.upper must be a list of finite numbers, one per axis, got ['.inf']",
    ),
    (
        "run problem=custom problem.function=mine:broken problem.lower=[0] problem.upper=[1]",
        "function 'mine:broken' at agent 0, x = [",
    ),
    (
        "run problem=custom problem.function=mine:f problem.space=nowhere.yaml",
        "problem.space must be parameters, or a YAML file of them, got 'nowhere.yaml': ",
    ),
    (
        "run problem=custom problem.function=mine:f problem.space=bad.yaml",
        "problem.space must be parameters, or a YAML file of them, got 'bad.yaml': while parsing",
    ),
    (
        "run problem=custom problem.function=mine:f problem.space=space.yaml problem.lower=[0]",
        "problem.space must be given without lower and upper",
    ),
    (
        "run problem=custom problem.function=mine:f problem.space={a:{type:real,lower:0,upper:1}}",
        "problem.space.a.type must be one of 'float', 'integer', 'categorical', 'ordinal', 'fixed', got 'real'",
    ),
    (
        "run problem=custom problem.function=mine:f problem.space={a:{type:float,lower:0}}",
        "problem.space.a.upper must be given",
    ),
    (
        "run problem=custom problem.function=mine:f problem.space={a:{type:float,lower:0,upper:1,log:true}}",
        "problem.space.a.lower must be above 0 on a log scale, got 0",
    ),
    (
        "run problem=custom problem.function=mine:f problem.space={a:{type:integer,lower:0.5,upper:3}}",
        "problem.space.a.lower must be a whole number, got 0.5",
    ),
    (
        "run problem=custom problem.function=mine:f problem.space={a:{type:categorical,choices:[]}}",
        "problem.space.a.choices must hold at least two values, all different, got []",
    ),
    (
        "run problem=custom problem.function=mine:f problem.space={a:{type:float,lower:0,upper:1,when:b}}",
        "problem.space.a.when must map a parameter's name to one value or a list of values, got 'b'",
    ),
    (
        "run problem=custom problem.function=mine:f problem.space=space.yaml problem.n_agents=0",
        "problem.n_agents must be an integer of at least 1, got 0",
    ),
    (
        "run problem=custom problem.function=mine:f problem.space=space.yaml problem.on_failure=ignore",
        "problem.on_failure must be one of 'stop', 'penalty', got 'ignore'",
    ),
    (
        "run problem=custom problem.function=mine:f problem.space=space.yaml problem.timeout=-3",
        "problem.timeout must be a finite number above 0, got -3",
    ),
    (
        "run problem=landmine data_dir=/nowhere",
        'data file /nowhere/landmine/LandmineData.mat is missing: run "python -m runners.fetch landmine',
    ),
    (
        "run problem=school data_dir=/nowhere",
        'data file /nowhere/school/school.mat is missing: run "python -m runners.fetch school',
    ),
    (
        "run problem=property algorithm=dp_fts",
        "algorithm=dp_fts needs a problem with agents, and Property has a table of candidates",
    ),
    (
        "run problem=synthetic algorithm=po_gp_ucb",
        "algorithm=po_gp_ucb needs a problem with a table of candidates, and Synthetic has agents",
    ),
    ("run executor=gpu", "unknown executor 'gpu': choose one of local, ray, ray_cluster"),
    (
        "run executor=cluster",
        "unknown executor 'cluster': choose one of local, ray, ray_cluster (did you mean 'ray_cluster'?)",
    ),
    ("run executor.num_gpus=1", "unknown override 'executor.num_gpus': it is a setting of executor=ray or ray_cluster"),
    ("run executor=ray executor.num_gpus=-1", "executor.num_gpus must be a finite number of at least 0, got -1"),
    ("run executor.device=cuda:7", "executor.device must be one of 'auto', 'cpu', 'cuda', got 'cuda:7'"),
    ("run executor.threads=0", "executor.threads must be an integer of at least 1, got 0"),
    ("run tracker.wandb.mode=on", "tracker.wandb.mode must be one of 'online', 'offline', 'disabled', got 'on'"),
    ("run tracker=wandb", "unknown tracker 'wandb': choose one of default"),
    ("run tracker.wandb=disabled", "tracker.wandb must have mode, project, show, artifacts, alerts and entity"),
    ("run experiment=fig99", "unknown experiment 'fig99': choose one of"),
    (
        "run experiment=fig2c",
        "experiment=fig2c is a sweep of several settings: python -m runners.sweep experiment=fig2c",
    ),
    ("run seeds=0..4", "seeds=0..4 is for runners.sweep; a run has one seed, or several with -m seed=0,1,2"),
    ("run scale=paper", "scale=paper is for runners.sweep; a run has one seed, or several with -m seed=0,1,2"),
    (
        "run +privacy.budget.epsilon=1 +rounds=5",
        "Could not append to config. An item is already at 'rounds'. Either remove + prefix: 'rounds=5' Or",
    ),
    ("run ~privacy", "setting 'privacy' is missing"),
    ("run dropout.probability=2", "dropout.probability must lie in [0, 1], got 2"),
    ("run again=maybe", "again must be one of True, False, got 'maybe'"),
    (
        "run privacy.budget.epsilon=0.001",
        "40 broadcasts cost epsilon 7.054 at delta 0.002944, more than privacy.budget.epsilon=0.001, which",
    ),
    ("sweep fig2c", "settings read key=value, got 'fig2c': python -m runners.sweep experiment=fig2c"),
    ("sweep experiment=fig2z", "unknown experiment 'fig2z': choose one of"),
    ("sweep experiment=fig2c seed=3", "seed cannot be given to a sweep: use seeds, such as seeds=0..4 or seeds=0,1,5"),
    ("sweep experiment=fig2c seeds=a", "seeds must be integers of at least 0, such as 0..4 or 0,1,5, got 'a'"),
    ("sweep experiment=fig2c seeds=4..0", "seeds must be integers of at least 0, such as 0..4 or 0,1,5, got '4..0'"),
    ("sweep experiment=fig2c --dryrun", "unrecognized arguments: --dryrun (did you mean --dry-run?)"),
    ("sweep experiment=fig2c scale=full", "scale must be one of 'quick', 'paper', got 'full'"),
    ("sweep experiment=fig2c sweep.max_concurrent=0", "sweep.max_concurrent must be an integer of at least 1, got 0"),
    (
        "sweep experiment=fig2c again=true",
        "again is for runners.run: a sweep leaves finished trials alone; to run one anew, delete its folder",
    ),
    ("status fig99", "no trial of 'fig99' in results (there are no results yet)"),
    ("best nowhere", "there is no finished run in nowhere"),
    ("privacy", "the following arguments are required: COMMAND"),
    ("privacy epsilon", "--agents must be given"),
    ("privacy epsilon --agents 29 --rounds 60 --q 2 --z 1", "--q must lie in (0, 1], got 2"),
    (
        "privacy calibrate --agents 29 --rounds 60 --q 0.35 --z 1 --epsilon 2",
        "three of --epsilon, --q, --z and --rounds must be given, got --epsilon, --q, --z, --rounds",
    ),
    ("privacy ledger nowhere.jsonl", "one of --delta and --agents must be given: delta, or the N of delta = N^-1.1"),
    ("audit problem=landmin", "unknown problem 'landmin': choose one of"),
    ("audit algorithm=ts", "algorithm=ts claims no privacy: there is nothing to audit"),
    ("fetch landmines", "unknown name landmines: the known names are landmine, har, emnist, school"),
    ("theory fig99", "no finished run of 'fig99' in results"),
]
PROGRAMS = {"run": "runners.run", "best": "runners.best", "status": "runners.status"}  # the others are packages


@pytest.mark.parametrize(("line", "says"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch, capsys, line, says):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    command, *words = line.split()
    if command == "run" and "tracker" not in line:
        words.append("tracker.wandb.mode=disabled")
    program = importlib.import_module(PROGRAMS.get(command, f"runners.{command}.command"))
    monkeypatch.setattr(sys, "argv", [f"runners.{command}", *words])
    try:
        code = program.main() if command == "run" else program.main(words)
    except SystemExit as stop:
        code = stop.code
    error = capsys.readouterr().err
    assert code in (1, 2) and error.startswith("error: ") and error.count("\n") == 1
    assert says in error
    left = [path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    # of a call that failed: its traceback, and no charge
    assert set(left) <= {*FILES, "failures.log", "ledger.jsonl", "lineage.json"}
