"""Runs with the private prior: one charge, a calibrated epsilon, and one sentence for settings that do not fit."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml

from dpfbo.privacy.accounting.analytic_gaussian import noise_multiplier
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.ledger import Ledger
from runners.compose.composition import Composition, build
from runners.privacy import command
from runners.recorded_run import run_configuration
from runners.sweep import command as sweep_command
from tests.helpers.compose import compose, setting_hash
from tests.helpers.small_runs import QUIET, call

PRIOR = ["algorithm=dp_prior", "problem.n_agents=9", "problem.grid_size=50", "algorithm.M=24", "n_init=3", "rounds=4"]
DELTA = 9**-1.1


def ran(folder, *more):
    return run_configuration(compose(*PRIOR, *QUIET, *more, f"results_dir={folder}"))


@pytest.mark.parametrize("epsilon", [0.3, 1, 4])
def test_a_target_is_met_by_the_analytic_gaussian_and_pld_agrees(epsilon):
    """The noise multiplier is the closed form's, rounded up to the four digits of a calibration."""
    experiment = build(Composition.of(compose(*PRIOR, f"privacy.epsilon={epsilon}")).given)
    z, exact = experiment.mechanism.noise_multiplier, noise_multiplier(epsilon, DELTA)
    assert exact * (1 - 1e-4) <= z <= exact * 1.001
    (event,) = experiment.plan.events
    spent = Pld().epsilon([event], DELTA)
    assert experiment.plan.epsilon() == spent
    assert 0.998 * epsilon <= spent <= epsilon


def test_one_release_pays_for_the_whole_run(tmp_path):
    summary, folder = ran(tmp_path, "privacy.epsilon=1", "rounds=6")
    (charge,) = Ledger(folder / "ledger.jsonl").charges
    assert (charge.round, summary["n_charges"]) == (0, 1)
    assert 0.998 <= summary["epsilon"]["pld"] <= 1
    server = pd.read_parquet(folder / "server.parquet")
    assert list(server["round"]) == [0]
    assert server["epsilon"][0] == summary["epsilon"]["pld"]
    assert server["sensitivity"][0] == pytest.approx(summary_norm(folder) / 9)
    assert server["clip_fraction"][0] == 0, "messages of norm 1 are not longer than the clip norm"
    assert set(pd.read_parquet(folder / "rounds.parquet")["source"]) <= {"initial", "own", "server", "random"}


def summary_norm(folder):
    return yaml.safe_load((folder / "config.yaml").read_text())["privacy"]["S"]


def test_the_first_points_are_public(tmp_path):
    """They do not depend on any observation: another noise of the objective, other functions, no server."""
    first = []
    for more in ([], ["problem.noise_variance=1"], ["problem.function_seed=5"], ["algorithm=shared_prior"]):
        _, folder = ran(tmp_path / str(len(first)), *more)
        first.append(np.stack(pd.read_parquet(folder / "rounds.parquet").query("round == 0")["x"]))
    assert all(np.array_equal(x, first[0]) for x in first)
    _, folder = ran(tmp_path / "seed", "seed=1")
    assert not np.array_equal(np.stack(pd.read_parquet(folder / "rounds.parquet").query("round == 0")["x"]), first[0])


def test_without_privacy_no_epsilon_is_finite(tmp_path):
    summary, folder = ran(tmp_path, "algorithm=shared_prior", "privacy.z=7")
    assert set(summary["epsilon"].values()) == {None}
    assert (pd.read_parquet(folder / "server.parquet")["sigma"] == 0).all()


@pytest.mark.parametrize("name", ["dp_prior", "shared_prior"])
def test_the_record_tells_the_model(tmp_path, name):
    _, folder = ran(tmp_path, f"algorithm={name}")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["algorithm"]["averaged_gp"]["lengthscales"] == [0.05, 0.1, 0.2, 0.4, 0.8]
    assert config["algorithm"]["server"]["_target_"].endswith("PriorServer")
    again, _ = run_configuration(compose(*PRIOR, *QUIET, f"algorithm={name}", f"results_dir={tmp_path / 'again'}"))
    assert json.loads((folder / "summary.json").read_text())["curve"] == again["curve"]


REFUSED = [
    (
        "privacy.q=0.5",
        "privacy.q (sampling_probability) must be 1 for algorithm=dp_prior: the noise that sampling adds",
    ),
    ("weights=softmax", "weights must be uniform for algorithm=dp_prior: the release is a plain sum, got Softmax"),
    ("algorithm.P=2", "algorithm.P must be 1 for algorithm=dp_prior: all agents share one prior"),
    ("n_init=1", "n_init must be at least 2 for algorithm=dp_prior: one point has no contrast, got 1"),
    ("algorithm.broadcasts=5", "algorithm.broadcasts must be 1 for algorithm=dp_prior: the prior is released once"),
    ("algorithm.broadcasts=null", "algorithm.broadcasts must be 1 for algorithm=dp_prior: the prior is released once"),
    ("algorithm.message_normalize=true", "algorithm.message_normalize must be False for algorithm=dp_prior"),
    ("algorithm.message_center=true", "algorithm.message_center must be False for algorithm=dp_prior"),
    ("algorithm.message=mean", "algorithm.message must be 'scores' for a PriorServer and for no other, got 'mean'"),
    ("algorithm.momentum=0.5", "algorithm.momentum has no effect on algorithm=dp_prior: leave it out, got 0.5"),
    ("algorithm.paired=true", "algorithm.paired has no effect on algorithm=dp_prior: leave it out, got True"),
    ("algorithm.follow=inverse", "algorithm.follow has no effect on algorithm=dp_prior: leave it out, got 'inverse'"),
    ("algorithm.M=0", "algorithm.M (n_features) must be an integer of at least 2, got 0"),
    ("algorithm.design=grid", "algorithm.design must be one of 'uniform', 'sobol', got 'grid'"),
    ("algorithm.averaged_gp.warp=perhaps", "algorithm.averaged_gp.warp must be one of True, False, got 'perhaps'"),
    ("algorithm.averaged_gp.factors=2", "algorithm.averaged_gp.factors must be a list, such as [1, 2], got 2"),
    ("algorithm.averaged_gp.factors=[]", "algorithm.averaged_gp.factors must name at least one number, got none"),
    ("algorithm.averaged_gp.noises=[0]", "algorithm.averaged_gp.noises must be a finite number above 0, got 0"),
    ("algorithm.averaged_gp=null", "algorithm.averaged_gp must be given for a PriorServer, got None"),
    ("~algorithm.averaged_gp", "algorithm.averaged_gp must be given for a PriorServer, got None"),
    ("+algorithm.prior.scale=1", "a key of algorithm must be one of"),
    (
        "algorithm.server._target_=dpfbo.federated.server.Server",
        "algorithm.averaged_gp must be left out for a Server, whose broadcasts such agents would not use",
    ),
]


@pytest.mark.parametrize(("override", "says"), REFUSED, ids=[o for o, _ in REFUSED])
def test_a_setting_that_does_not_fit_is_one_sentence(monkeypatch, capsys, tmp_path, override, says):
    assert call(monkeypatch, *PRIOR, override, f"results_dir={tmp_path / 'r'}") != 0
    error = capsys.readouterr().err
    assert says in error and error.count("error: ") == 1 and "Traceback" not in error
    assert not list((tmp_path / "r").rglob("*"))


LOCAL = ["problem=branin", "problem.n_agents=4", "algorithm=local", "n_init=3", "rounds=3"]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("+algorithm.averaged_gp.factors=[1]", "algorithm.averaged_gp.factors has no effect on algorithm=local"),
        ("algorithm.averaged_gp.lengthscales=[-1]", "algorithm.averaged_gp.lengthscales must be a finite number above"),
        ("algorithm.averaged_gp.lengthscales=0.1", "algorithm.averaged_gp.lengthscales must be a list, such as [1, 2]"),
        ("algorithm.follow=always", "algorithm.follow must be 'never' without a server, got 'always'"),
        ("algorithm.message=scores", "algorithm.message must be 'scores' for a PriorServer and for no other"),
        ("algorithm.broadcasts=1", "algorithm.broadcasts has no effect on algorithm=local: leave it out, got 1"),
    ],
)
def test_a_setting_that_does_not_fit_agents_alone_is_one_sentence(monkeypatch, capsys, tmp_path, override, says):
    assert call(monkeypatch, *LOCAL, override, f"results_dir={tmp_path / 'r'}") == 1
    error = capsys.readouterr().err
    assert says in error and error.count("error: ") == 1 and "Traceback" not in error
    assert not list((tmp_path / "r").rglob("*"))


def test_agents_alone_average_gps_as_they_are_told(tmp_path):
    """The same first points as with a prior; a setting of the models changes what follows."""
    curves = []
    for more in ([], ["algorithm.averaged_gp.warp=false"], ["algorithm=dp_prior", "privacy.z=10000"]):
        summary, folder = run_configuration(compose(*LOCAL, *QUIET, *more, f"results_dir={tmp_path}"))
        curves.append(summary["curve"]["mean"])
        if "algorithm=dp_prior" not in more:
            assert set(summary["epsilon"].values()) == {0.0}
            assert set(pd.read_parquet(folder / "rounds.parquet")["source"]) == {"initial", "own"}
    assert curves[0][0] == curves[1][0] == curves[2][0] and curves[0] != curves[1]


def test_a_kernel_that_agents_do_not_use_is_refused():
    gpytorch = ["algorithm.own_gp.fit=gpytorch", "algorithm.own_draw.method=gpytorch"]
    for name in ("local", "dp_prior"):
        with pytest.raises(ValueError, match=rf"algorithm\.own_gp\.ard has no effect on algorithm={name}, whose"):
            build(compose(*LOCAL, f"algorithm={name}", *gpytorch, "algorithm.own_gp.ard=true"))


def test_a_gp_that_agents_do_not_use_is_noted(monkeypatch, capsys, tmp_path):
    given = [*LOCAL, *QUIET, "algorithm.own_gp.lengthscale=0.3", f"results_dir={tmp_path}"]
    assert call(monkeypatch, *given) == 0
    said = "note: agents of algorithm=local use averaged_gp, algorithm.own_gp.lengthscale=0.3 has no effect"
    assert said in capsys.readouterr().err


def test_other_algorithms_have_no_prior(monkeypatch, capsys, tmp_path):
    for more, says in (
        (["+algorithm.averaged_gp={warp: true}"], "algorithm.averaged_gp must be left out for a Server"),
        (["algorithm.message=scores"], "algorithm.message must be 'scores' for a PriorServer and for no other"),
        (
            ["algorithm.server._target_=dpfbo.federated.prior_server.PriorServer"],
            "algorithm.averaged_gp must be given for a PriorServer, got None",
        ),
    ):
        assert call(monkeypatch, "algorithm=dp_fts_de", *more, f"results_dir={tmp_path / 'r'}") == 1
        assert says in capsys.readouterr().err


def test_without_privacy_sampling_is_no_matter():
    build(compose(*PRIOR, "algorithm=shared_prior", "privacy.q=0.5"))


def test_each_setting_of_the_prior_has_a_folder_of_its_own():
    base = setting_hash(compose(*PRIOR))
    others = [
        "algorithm.averaged_gp.warp=false",
        "algorithm.averaged_gp.factors=[1]",
        "algorithm.design=uniform",
        "privacy.z=2",
    ]
    assert len({base, *(setting_hash(compose(*PRIOR, o)) for o in others)}) == 5


def answer(capsys, *argv):
    assert command.main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_planner_and_the_ledger_command_say_the_same(capsys, tmp_path):
    """A release of every agent is planned with --rounds 1 --q 1."""
    one = ["--agents", "9", "--rounds", "1", "--q", "1"]
    z = answer(capsys, "calibrate", *one, "--epsilon", "1")["found"]["z"]
    summary, folder = ran(tmp_path, "privacy.epsilon=1")
    assert yaml.safe_load((folder / "config.yaml").read_text())["privacy"]["z"] == z
    planned = answer(capsys, "epsilon", *one, "--z", str(z))["epsilon"]
    spent = answer(capsys, "ledger", str(folder / "ledger.jsonl"), "--agents", "9")["epsilon"]
    assert planned["pld"] == pytest.approx(summary["epsilon"]["pld"]) == pytest.approx(spent["pld"])


def test_a_sweep_plans_settings_with_their_noise(capsys, tmp_path):
    settings = [*PRIOR, "algorithm=dp_prior,shared_prior", "privacy.epsilon=1", "seeds=0,1", f"results_dir={tmp_path}"]
    assert sweep_command.main([*settings[1:], "--dry-run", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["trials"]) == 4
    epsilons = [trial["predicted"]["epsilon"]["pld"] for trial in report["trials"]]
    assert sum(e is not None and 0.998 <= e <= 1 for e in epsilons) == 2
    assert sum(e is None for e in epsilons) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_command_shows_the_settings(monkeypatch, capsys):
    assert call(monkeypatch, *PRIOR, "--cfg", "job", "--resolve") == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["privacy"]["q"] == 1.0
    assert shown["privacy"]["S"] == 1.0
    assert shown["weights"] == {"_target_": "dpfbo.federated.weights.uniform.Uniform"}
    assert shown["algorithm"]["broadcasts"] == 1
