"""Every file of conf/ composes, and the presets are the paper's."""

import pytest
from omegaconf import OmegaConf

from runners.compose.composition import build
from runners.compose.conf_folder import CONF, added_folders, groups
from runners.compose.overrides import one_sentence
from runners.compose.typed import is_outsourced
from tests.helpers.compose import compose, setting_hash


def options(group):
    return sorted(f.stem for f in (CONF / group).glob("[a-z]*.yaml"))


OUTSOURCED = [f.stem for f in sorted((CONF / "algorithm").glob("[a-z]*.yaml")) if "- _outsourced\n" in f.read_text()]
FEDERATED = [name for name in options("algorithm") if name not in OUTSOURCED]


@pytest.mark.parametrize(
    ("problem", "algorithm"),
    [
        *((p, a) for p in ("synthetic", "synthetic_heterogeneous", "branin") for a in FEDERATED),
        *((p, a) for p in ("grid_gp", "branin_grid") for a in OUTSOURCED),
    ],
)
def test_every_algorithm_builds_on_every_problem(problem, algorithm):
    cfg = compose(f"problem={problem}", f"algorithm={algorithm}")
    assert is_outsourced(cfg) == (algorithm in OUTSOURCED)
    experiment = build(cfg)
    assert experiment.settings.algorithm.name == algorithm
    assert experiment.rounds == cfg.problem.preset.rounds


@pytest.mark.parametrize("group", ["weights", "acquisition", "executor", "tracker", "privacy"])
def test_every_option_builds(group):
    for option in options(group):
        algorithm = {"outsourced": "po_gp_ucb", "prior": "dp_prior"}.get(option, "dp_fts_de")
        build(compose(f"{group}={option}", f"algorithm={algorithm}"))


@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_experiment_builds(experiment):
    cfg = compose(f"experiment={experiment}")
    assert cfg.experiment_name == experiment
    build(cfg)


@pytest.mark.parametrize(
    ("problem", "algorithm", "expected"),
    [
        ("synthetic", "dp_fts_de", dict(P=2, S=11, q=0.25, z=1.0, M=50, rounds=40, n_init=10, lengthscale=0.03)),
        ("synthetic", "dp_fts", dict(P=1, S=8, q=0.25, z=1.0, M=50, rounds=40, n_init=10, lengthscale=0.03)),
        ("synthetic", "fts", dict(P=1, M=50, rounds=40)),
        ("landmine", "dp_fts_de", dict(P=4, S=22, q=0.35, z=1.0, M=100, rounds=60, n_init=10, lengthscale=0.01)),
        ("landmine", "dp_fts", dict(P=1, S=11, M=100, rounds=60)),
        ("synthetic", "dp_prior", dict(P=1, S=1.0, q=1, M=80, rounds=40, n_init=10, broadcasts=1)),
        ("landmine", "dp_prior", dict(P=1, S=1.0, q=1, M=80, rounds=60, n_init=10, broadcasts=1)),
    ],
)
def test_presets_of_the_paper(problem, algorithm, expected):
    cfg = compose(f"problem={problem}", f"algorithm={algorithm}")
    flat = {**cfg.algorithm, **cfg.privacy, "rounds": cfg.rounds, "n_init": cfg.n_init}
    assert {key: flat[key] for key in expected} == expected
    assert cfg.privacy.sensitivity == "paper"


def test_setting_hash_names_the_setting_and_nothing_else():
    base = setting_hash(compose())
    for same in (
        "seed=7",
        "privacy.z=1",
        "results_dir=/elsewhere",
        "tracker.wandb.mode=disabled",
        "executor.threads=1",
    ):
        assert setting_hash(compose(same)) == base
    for other in ("privacy.z=2", "algorithm=ts", "rounds=41", "problem.n_agents=199", "weights=uniform"):
        assert setting_hash(compose(other)) != base

    assert setting_hash(compose("algorithm=ts", "privacy.z=3")) == setting_hash(compose("algorithm=ts"))


def test_setting_hash_tells_a_fixed_function_from_one_that_equals_the_seed():
    assert setting_hash(compose("problem.function_seed=0")) != setting_hash(compose("problem.function_seed=${seed}"))


def test_function_changes_with_the_seed_unless_it_is_fixed():
    assert compose("seed=5").problem.function_seed == 5
    assert compose("seed=5", "problem.function_seed=2").problem.function_seed == 2


def test_base_options_are_not_offered():
    assert OmegaConf.is_missing(OmegaConf.load(CONF / "algorithm" / "_base.yaml"), "name")
    assert "_base" not in one_sentence("In 'config': Could not find 'algorithm/x'")


def test_an_added_folder_does_not_replace_what_is_there(monkeypatch, tmp_path):
    monkeypatch.setenv("DPFBO_CONF", str(tmp_path))
    (tmp_path / "problem").mkdir()
    (tmp_path / "problem" / "mine.yaml").write_text("")
    assert added_folders() == [tmp_path] and "mine" in groups()["problem"]
    (tmp_path / "problem" / "branin.yaml").write_text("")
    with pytest.raises(ValueError, match=r"branin.yaml has the name of a file of dpfbo's own .*: rename it"):
        added_folders()
    monkeypatch.setenv("DPFBO_CONF", str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="DPFBO_CONF must name a folder, got '.*absent'"):
        added_folders()
