"""A `_target_` that is not allowed is refused before anything is imported or called, wherever a file names it."""

import json
import sys

import pytest
import yaml
from omegaconf import OmegaConf

from dpfbo import extensions
from dpfbo.formats.bounded import check_yaml
from runners import best, run, study
from runners.compose.composition import Composition
from runners.compose.configuration import command_line, composed
from runners.compose.instantiate import check_targets
from runners.compose.sweep_line import SweepError
from runners.identity.setting import names_of
from runners.sweep.plan import plan
from runners.theory import command as theory
from runners.wandb import command as wandb
from tests.helpers.compose import compose

MARK = "called.txt"
EVIL = f'''"""A module whose import and whose function leave a mark."""

from pathlib import Path

Path("{MARK}").write_text("imported")


def evil(*arguments, **others):
    Path("{MARK}").write_text("called")
    return 0.0


class Evil:
    __init__ = evil
'''
HARMFUL = (
    "os.system",
    "subprocess.run",
    "builtins.eval",
    "evil_module.evil",
    "evil_module.Evil",
    "pathlib.Path.unlink",
)
NODES = ("problem", "weights", "privacy.noise", "privacy.schedule", "algorithm.server", "algorithm.own_gp.kernel")
TINY = (
    "problem=branin", "algorithm=dp_fts_de", "problem.n_agents=4", "rounds=1", "n_init=2",
    "tracker.wandb.mode=disabled",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory with a module that leaves a mark when it is imported or called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "evil_module.py").write_text(EVIL)
    yield tmp_path
    sys.modules.pop("evil_module", None)


@pytest.mark.parametrize("target", HARMFUL)
@pytest.mark.parametrize("key", NODES)
def test_no_node_runs_what_is_not_allowed(folder, key, target):
    cfg = compose(*TINY)
    OmegaConf.set_struct(cfg, False)
    OmegaConf.update(cfg, key, {"_target_": target, "path": MARK}, merge=key == "problem")
    package = target.partition(".")[0]
    with pytest.raises(ValueError, match=rf"^{key}\._target_='{target}' is neither .* allow=\[{package}\] allows it$"):
        Composition.of(cfg).experiment  # noqa: B018
    assert not (folder / MARK).exists() and "evil_module" not in sys.modules


@pytest.mark.parametrize(
    "target",
    [
        "dpfbo.problems.custom.importlib.import_module", "dpfbo.problems.custom.Path", "dpfbo.checkpoint.shutil.rmtree",
        "dpfbo.problems.readers.data_files.os.system", "dpfbo.formats.files.replace_file", "gpytorch.torch.load",
        "dpfbo", "dpfbo.problems.readers.csv_table.read_columns", "dpfbo.problemsx.Evil", "gpytorch.kernels", "", 3,
        None, ["os"], "dpfbo.privacy.ledger.Ledger", "${oc.env:HOME}", "dpfbo.problems.custom.Custom.__init__",
        ".os.system",
    ],
)  # fmt: skip
def test_what_a_module_imported_is_no_class_of_its_package(target):
    with pytest.raises(ValueError, match="_target_") as caught:
        check_targets({"a": [{"_target_": target}]})
    assert "\n" not in str(caught.value)


def test_classes_of_allowed_packages_pass(folder):
    check_targets(
        {"a": {"_target_": "dpfbo.privacy.noise.Gaussian"}, "b": {"_target_": "dpfbo.problems.branin.Branin"}}
    )
    check_targets({"_target_": "evil_module.Evil"}, ["evil_module"])
    check_targets({"_target_": "evil_module.evil"}, "evil_module")
    for allow in (["os.path.."], [3], {"os": 1}, 7, ["a b"]):
        with pytest.raises(ValueError, match="allow must be names of packages"):
            check_targets({}, allow)


def test_an_installed_extension_is_allowed(monkeypatch):
    class Entry:
        value = "evil_package.conf"

    monkeypatch.setattr(extensions, "entries", lambda group: {"x": Entry()} if group == extensions.CONF else {})
    with pytest.raises(ValueError, match="cannot be imported: No module named 'evil_package'"):
        check_targets({"_target_": "evil_package.problem.Sphere"})


def test_allow_is_no_part_of_a_setting_and_is_not_recorded(folder):
    plain, allowed = (Composition.of(compose(*TINY, *more)) for more in ([], ["allow=[evil_module]"]))
    assert names_of(plain.given) == names_of(allowed.given) and plain.recorded == allowed.recorded
    assert "allow" not in plain.recorded and plain.given["allow"] == []
    assert [s.name for s in plan([*TINY, "allow=[evil_module]"]).settings] == [names_of(plain.given).setting]


def test_a_file_cannot_allow_its_own_classes(folder, monkeypatch):
    (folder / "conf" / "experiment").mkdir(parents=True)
    monkeypatch.setenv("DPFBO_CONF", str(folder / "conf"))
    (folder / "conf" / "experiment" / "mine.yaml").write_text("# @package _global_\nallow: [evil_module]\n")
    with pytest.raises(Exception, match="mine.yaml sets allow, which only a command line may set"):
        composed(["experiment=mine"])
    (folder / "conf" / "experiment" / "mine.yaml").write_text(
        '# @package _global_\nsweep: {settings: ["allow=[evil_module] problem._target_=evil_module.Evil"]}\n'
    )
    with pytest.raises(SweepError, match="allow cannot be given in sweep.settings"):
        plan(["experiment=mine"])
    assert not (folder / MARK).exists()


@pytest.mark.parametrize(
    "text",
    [
        "hydra: {callbacks: {x: {_target_: evil_module.Evil}}}",
        "hydra: {launcher: {_target_: evil_module.Evil}}",
        'hydra: {job_logging: {version: 1, handlers: {x: {"()": evil_module.evil}}}}',
        "hydra: {job_logging: {version: 1, handlers: {x: {class: evil_module.Evil}}}}",
    ],
)
@pytest.mark.parametrize("multirun", [False, True])
def test_hydra_runs_nothing_of_a_file_either(folder, monkeypatch, capsys, text, multirun):
    (folder / "conf" / "experiment").mkdir(parents=True)
    monkeypatch.setenv("DPFBO_CONF", str(folder / "conf"))
    (folder / "conf" / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")
    refused = pytest.raises(ValueError, match=r"is neither of dpfbo nor|must use the classes of logging")
    with refused, command_line(["experiment=mine", *(["seed=0,1"] if multirun else [])], multirun):
        pass
    with pytest.raises(SystemExit) as ended:
        run.start([*(["-m"] if multirun else []), "experiment=mine"])
    assert ended.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1
    assert not (folder / MARK).exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The files of a finished run."""
    from runners.recorded_run import run_configuration

    results = tmp_path_factory.mktemp("results")
    _, folder = run_configuration(compose(*TINY, f"results_dir={results}", "experiment_name=mine"))
    return folder


def hostile_copy(finished, folder, **nodes):
    """A results folder whose config.yaml has other nodes; returns the folder of its run."""
    import shutil

    shutil.copytree(finished.parents[2], folder / "results")
    copy = folder / "results" / finished.relative_to(finished.parents[2])
    config = yaml.safe_load((copy / "config.yaml").read_text())
    (copy / "config.yaml").write_text(yaml.safe_dump({**config, **nodes}))
    return copy


CUSTOM = "dpfbo.problems.custom.Custom"
CALLED = {"_target_": CUSTOM, "function": "evil_module:evil", "lower": [0, 0], "upper": [1, 1], "n_agents": 4}


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        ({"_target_": "evil_module.Evil"}, "problem._target_='evil_module.Evil' is neither"),
        ({"_target_": "os.system", "command": f"touch {MARK}"}, "problem._target_='os.system' is neither"),
        (CALLED, "problem.function='evil_module:evil' is named by a file of the results folder"),
        ({**CALLED, "function": "os:system"}, "problem.function='os:system' is named by a file"),
    ],
)
def test_a_results_folder_runs_nothing_when_it_is_replayed_or_shown(folder, finished, capsys, problem, why):
    copy = hostile_copy(finished, folder, problem=problem, allow=["evil_module", "os"])
    assert theory.main(["mine"]) == 1
    said = capsys.readouterr().err
    assert why in said and "--allow" in said and "Traceback" not in said and len(said.splitlines()) == 1
    assert best.main([str(copy)]) == 0
    wandb.main(["backfill", "mine"])
    assert not (folder / MARK).exists() and not (copy / "theory.json").exists()


def test_a_function_of_a_results_folder_runs_when_it_is_named_again(folder, finished, capsys):
    hostile_copy(finished, folder, problem=CALLED)
    theory.main(["mine", "--allow", "evil_module"])
    assert (folder / MARK).exists() and "is named by a file" not in capsys.readouterr().err
    assert theory.main(["mine", "--allow", "evil module"]) == 1
    assert "allow must be names of packages" in capsys.readouterr().err


def test_a_resumed_run_reads_nothing_from_the_recorded_configuration(folder, finished):
    from runners.recorded_run import run_configuration

    copy = hostile_copy(finished, folder, problem={"_target_": "evil_module.Evil"})
    cfg = compose(*TINY, f"results_dir={folder / 'results'}", "experiment_name=mine", "rounds=2")
    summary, where = run_configuration(cfg)
    assert summary["rounds"] == 2 and where.parts[-3:-2] == copy.parts[-3:-2] and not (folder / MARK).exists()


@pytest.mark.parametrize("content", ["a: &a [*a]\n", "[" * 5000, "\n".join(
    [f"a0: &a0 [{','.join('x' * 10)}]", *(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12))]
)])  # fmt: skip
def test_yaml_that_grows_without_end_is_refused(folder, finished, capsys, content):
    with pytest.raises(ValueError, match=r"must hold at most 100000 values|must not nest"):
        (folder / "space.yaml").write_text(content)
        check_yaml(folder / "space.yaml")
    copy = hostile_copy(finished, folder)
    (copy / "config.yaml").write_text(content)
    assert theory.main(["mine"]) == 1 and best.main([str(copy)]) == 1
    assert study.main(["new", "s.json", "--space", "space.yaml", "--agents", "3"]) == 1
    with pytest.raises(ValueError, match=r"problem.space must be parameters.*(100000 values|must not nest)"):
        Composition.of(compose("problem=custom", "problem.function=a:b", "problem.space=space.yaml"))
    assert "Traceback" not in capsys.readouterr().err and not (folder / "s.json").exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"algorithm": {"_target_": "evil_module.Evil"}}, {"algorithm": ["dp_prior"]}, {"n_agents": "8"}, {"rng": 1},
        {"space": {"x": {"_target_": "os.system"}}}, {"space": [1]}, {"space": None}, {"n_agents": 10**12},
        {"rounds": 10**12}, {"n_init": 10**12}, {"noise_multiplier": "1"}, {"noise_multiplier": float("nan")},
        {"delta": [1]}, {"seed": {}}, {"rng": ["os"]}, {"n_agents": True}, {"rounds": 2.5}, {"seed": -1},
        {"seed": 2**70}, {"delta": -1.0}, {"noise_multiplier": -1.0},
    ],
    ids=str,
)  # fmt: skip
def test_a_hostile_description_of_a_study_is_one_sentence(folder, capsys, changed):
    (folder / "space.yaml").write_text("x: {type: float, lower: 0, upper: 1}\n")
    assert study.main(["new", "s.json", "--space", "space.yaml", "--agents", "3", "--epsilon", "5"]) == 0
    described = json.loads((folder / "s.json").read_text())
    (folder / "s.json").write_text(json.dumps({**described, **changed}))
    capsys.readouterr()
    for arguments in (["join", "site", "s.json", "--agent", "0"], ["host", "server", "s.json"]):
        assert study.main(arguments) == 1
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1 and "Traceback" not in said
    assert not (folder / MARK).exists() and not (folder / "site" / "party.json").exists()
