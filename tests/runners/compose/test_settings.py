"""The tree of settings, and the user's keys before the words of the library."""

import pytest

from analysis import labels
from analysis.load import LATER, normalised
from dpfbo.checks import SettingError
from runners.compose import composition
from runners.compose.composition import Composition, build, problem_of
from runners.compose.identity import setting_hash
from runners.compose.keys import MECHANISM, keys
from runners.compose.old_names import ADDED, as_first_written, modernised
from runners.compose.settings import ProblemSettings, outside_setting
from runners.compose.typed import typed
from tests.helpers.compose import compose


def test_analysis_leaves_out_what_is_no_part_of_a_setting():
    """Analysis reads files only, so it has a list of its own."""
    of_problems = {f"problem.{key}" for key in ProblemSettings.OUTSIDE}
    assert set(labels.NOT_A_SETTING) == {*outside_setting(), *of_problems}


def test_analysis_knows_the_later_settings():
    assert {("algorithm", "own_gp"): LATER} == ADDED


def test_analysis_reads_runs_of_any_version_alike():
    resolved = Composition(compose("algorithm=ts")).resolved
    assert normalised(resolved)["algorithm"] == normalised(as_first_written(resolved))["algorithm"]
    other = Composition(compose(*GPYTORCH, "algorithm.own_gp.ard=true")).resolved
    assert normalised(other)["algorithm"]["own_gp"]["ard"] is True


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sampling_probability", "privacy.q (sampling_probability) must be good"),
        ("delta", "privacy.delta must be good"),
        ("normalize", "algorithm.message_normalize must be good"),
    ],
)
def test_keys_stand_before_the_words_of_the_library(name, says):
    with pytest.raises(ValueError, match="must be good") as refusal, keys("privacy", **MECHANISM):
        raise SettingError(name, "must be good")
    assert str(refusal.value) == says


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=ts"],
        ["algorithm=dp_fts_de", "privacy/schedule=power", "weights=power"],
        ["algorithm=fts_original"],
        ["algorithm=random_server"],
        ["algorithm=histogram_gp_ucb"],
        ["algorithm=po_gp_ucb"],
    ],
)
def test_a_configuration_of_the_first_version_is_read_as_it_was_written(overrides):
    resolved = Composition(compose(*overrides)).resolved
    old = as_first_written(resolved)
    assert old != resolved
    assert isinstance(old["algorithm"]["server"], str)
    assert modernised(old) == resolved


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ("algorithm=gaussian_gp_ucb", "5f163eae0f22"),
        ("algorithm=histogram_gp_ucb", "bad9a54c0b17"),
        ("algorithm=cover_gp_ucb", "9e113192acf6"),
        ("algorithm=po_gp_ucb privacy.rng=os", "f591b4e6f239"),
        ("algorithm=dp_fts_de privacy/schedule=power weights=power", "cb67c171fae8"),
        ("algorithm=dp_fts_de_plus privacy.epsilon=1", "55ce7042266b"),
        ("algorithm=fts weights=uniform", "0c104b59ff1d"),
        ("problem=branin algorithm=sobol_server", "305f9e509468"),
    ],
)
def test_settings_keep_the_names_that_the_first_version_gave_them(overrides, name):
    """So that finished runs and ledgers are found again."""
    assert setting_hash(compose(*overrides.split())) == name


GPYTORCH = ["algorithm=ts", "algorithm.own_gp.fit=gpytorch", "algorithm.own_draw.method=gpytorch"]
KERNELS = [
    ["algorithm.own_gp.kernel=matern52"],
    ["algorithm.own_gp.kernel={_target_: gpytorch.kernels.RQKernel}"],
    ["algorithm.own_gp.ard=true"],
    ["algorithm.own_gp.warp=true"],
    ["algorithm.own_gp.priors=true"],
]


@pytest.mark.parametrize("overrides", KERNELS, ids=lambda o: o[0])
def test_a_later_setting_counts_where_it_changes_something(overrides):
    cfg = compose(*GPYTORCH, *overrides)
    assert setting_hash(cfg) != setting_hash(compose(*GPYTORCH))
    resolved = Composition(cfg).resolved
    assert modernised(as_first_written(resolved)) == resolved


def test_a_configuration_without_later_settings_has_their_old_values():
    """A config.yaml of an earlier version."""
    resolved = Composition(compose("algorithm=ts")).resolved
    old = as_first_written(resolved)
    assert set(old["algorithm"]["own_gp"]) == {"fit", "every", "lengthscale", "variance", "noise"}
    settings = typed({**resolved, "algorithm": {**resolved["algorithm"], "own_gp": old["algorithm"]["own_gp"]}})
    assert settings == typed(resolved)


def test_a_kernel_is_checked_before_work_starts():
    with pytest.raises(ValueError, match=r"^algorithm\.own_gp\.kernel\._target_=.* cannot be imported: .*'NoKernel'"):
        build(compose(*GPYTORCH, "algorithm.own_gp.kernel={_target_: gpytorch.kernels.NoKernel}"))


def test_a_key_that_no_class_knows_is_refused():
    with pytest.raises(ValueError, match="a key of algorithm must be one of name, server, .* got 'colour'"):
        Composition(compose("+algorithm.colour=blue")).settings  # noqa: B018


def test_a_problem_is_built_once_for_a_calibrated_run(monkeypatch):
    built = []

    def counted(node):
        built.append(node)
        return problem_of(node)

    monkeypatch.setattr(composition, "problem_of", counted)
    of_run = Composition(compose("privacy.epsilon=2", "problem.n_agents=8", "rounds=3"))
    assert of_run.experiment.problem is of_run.problem
    assert of_run.settings.privacy.z > 0
    assert len(built) == 1


def test_delta_is_that_of_all_agents():
    """N^-1.1 exactly, whatever the number of sub-regions, of the study and of the plan that a run reports by."""
    some = ["algorithm=dp_fts_de", "problem.n_agents=12", "algorithm.P=4", "privacy.q=1", "rounds=2"]
    experiment = Composition(compose(*some)).experiment
    assert experiment.plan.delta == experiment.study.plan.delta == 12**-1.1


@pytest.mark.parametrize("server", ["{_target_: dpfbo.problems.branin.Branin}", "peer", "3"])
def test_a_server_is_null_or_a_class_of_servers(server):
    with pytest.raises(ValueError, match="algorithm.server must be null or the class of a server, got"):
        Composition(compose("algorithm=fts", f"algorithm.server={server}")).settings  # noqa: B018


def test_a_key_beside_the_class_of_a_server_is_refused():
    with pytest.raises(ValueError, match="algorithm.server must be null or the class of a server, got"):
        Composition(compose("algorithm=fts", "+algorithm.server.alpha=3")).settings  # noqa: B018


def test_a_key_at_the_top_may_serve_interpolations():
    settings = Composition(compose("+my_rounds=3", "rounds=${my_rounds}")).settings
    assert settings.rounds == 3


def test_a_bad_seed_is_named_before_what_follows_from_it():
    with pytest.raises(ValueError, match="^seed must be an integer of at least 0, got -1$"):
        Composition(compose("seed=-1")).experiment  # noqa: B018
