"""The tree of settings, and the user's keys before the words of the library."""

from pathlib import Path

import pytest

from analysis import labels
from dpfbo.checks import SettingError
from runners.compose import composition
from runners.compose.composition import Composition, build, problem_of
from runners.compose.keys import WORDS, keys
from runners.compose.settings import ProblemSettings, outside_setting
from tests.helpers.compose import compose, setting_hash


def test_analysis_leaves_out_what_is_no_part_of_a_setting():
    """Analysis reads files only, so it has a list of its own."""
    of_problems = {f"problem.{key}" for key in ProblemSettings.OUTSIDE}
    assert set(labels.NOT_A_SETTING) == {*outside_setting(), *of_problems}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sampling_probability", "privacy.q (sampling_probability) must be good"),
        ("delta", "privacy.delta must be good"),
        ("normalize", "algorithm.message_normalize must be good"),
    ],
)
def test_keys_stand_before_the_words_of_the_library(name, says):
    with pytest.raises(ValueError, match="must be good") as refusal, keys("privacy"):
        raise SettingError(name, "must be good")
    assert str(refusal.value) == says


GPYTORCH = ["algorithm=ts", "algorithm.own_gp.fit=gpytorch", "algorithm.own_draw.method=gpytorch"]
KERNELS = [
    ["algorithm.own_gp.kernel=matern52"],
    ["algorithm.own_gp.ard=true"],
    ["algorithm.own_gp.warp=true"],
    ["algorithm.own_gp.priors=true"],
]


def test_the_page_of_names_has_both_names_of_a_setting():
    page = (Path(__file__).parents[3] / "docs" / "concepts" / "names.md").read_text()
    for key, word in WORDS.items():
        assert f"| `{key}`, `{word}` |" in page


@pytest.mark.parametrize("overrides", KERNELS, ids=lambda o: o[0])
def test_a_kernel_is_part_of_the_setting(overrides):
    assert setting_hash(compose(*GPYTORCH, *overrides)) != setting_hash(compose(*GPYTORCH))


def test_a_kernel_is_checked_before_work_starts():
    with pytest.raises(ValueError, match=r"^algorithm\.own_gp\.kernel must be one of 'rbf', .*, got 'cosine'"):
        build(compose(*GPYTORCH, "algorithm.own_gp.kernel=cosine"))


def test_a_key_that_no_class_knows_is_refused():
    with pytest.raises(ValueError, match="a key of algorithm must be one of 'name', 'server', .* got 'colour'"):
        Composition.of(compose("+algorithm.colour=blue"))


def test_a_problem_is_built_once_for_a_calibrated_run(monkeypatch):
    built = []

    def counted(node):
        built.append(node)
        return problem_of(node)

    monkeypatch.setattr(composition, "problem_of", counted)
    of_run = Composition.of(compose("privacy.epsilon=2", "problem.n_agents=8", "rounds=3"))
    assert of_run.settings.privacy.mechanism.noise_multiplier == of_run.given.privacy.z > 0
    assert len(built) == 1


def test_delta_is_that_of_all_agents():
    """N^-1.1 exactly, whatever the number of sub-regions, of the study and of the plan that a run reports by."""
    some = ["algorithm=dp_fts_de", "problem.n_agents=12", "algorithm.P=4", "privacy.q=1", "rounds=2"]
    experiment = Composition.of(compose(*some)).experiment
    assert experiment.plan.delta == experiment.study.plan.delta == 12**-1.1


@pytest.mark.parametrize("server", ["{_target_: dpfbo.problems.branin.Branin}", "peer", "3"])
def test_a_server_is_null_or_a_class_of_servers(server):
    with pytest.raises(ValueError, match="algorithm.server must be null or the class of a server, got"):
        Composition.of(compose("algorithm=fts", f"algorithm.server={server}"))


def test_a_key_beside_the_class_of_a_server_is_refused():
    with pytest.raises(ValueError, match="algorithm.server must be null or the class of a server, got"):
        Composition.of(compose("algorithm=fts", "+algorithm.server.alpha=3"))


def test_a_key_at_the_top_may_serve_interpolations():
    settings = Composition.of(compose("+my_rounds=3", "rounds=${my_rounds}")).settings
    assert settings.rounds == 3


def test_a_bad_seed_is_named_before_what_follows_from_it():
    with pytest.raises(ValueError, match="^seed must be an integer of at least 0, got -1$"):
        Composition.of(compose("seed=-1"))
