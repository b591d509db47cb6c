"""Many configurations composed from few readings of the files are those that Hydra composes one by one."""

import hydra
import pytest
from hydra.errors import HydraException
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from runners.compose.configuration import Composer, composing
from runners.compose.overrides import quoted
from tests.helpers.compose import compose

PIECES = (
    "algorithm=ts", "algorithm=dp_prior", "problem=branin", "weights=uniform", "privacy/schedule=steps", "privacy.z=2",
    "privacy.z=0.5", "privacy.q=0.35", "problem.n_agents=7", "rounds=3", "problem.preset.rounds=9", "algorithm.P=2",
    "privacy.accountants=[rdp,pld]", "experiment=fig2c", "experiment=frontier", "dropout={probability:0.1}",
    "problem.lower=[0,1]", "+problem.extra=1", "~privacy.delta", "tracker.wandb.mode=online", "seed=4",
    "executor=ray", "executor.num_gpus=0.5", "sweep.address='a:1'", "privacy.zz=1", "algorithm=nothing",
    "rounds=${seed}", "data_dir=null",
)  # fmt: skip


def outcome(compose, overrides):
    try:
        return OmegaConf.to_yaml(compose(list(overrides)))
    except HydraException as error:
        return f"{type(error).__name__}: {error}"


@settings(max_examples=4, deadline=None)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=4, unique=True), min_size=1, max_size=3))
def test_compositions_are_hydras(sequences):
    with composing():
        composer = Composer()
        for overrides in [*sequences, *sequences]:
            expected = outcome(lambda o: hydra.compose("config", o), overrides)
            assert outcome(composer.compose, overrides) == expected


def test_files_are_read_once_for_each_choice_of_groups(monkeypatch):
    calls, compose = [], hydra.compose
    monkeypatch.setattr(hydra, "compose", lambda *args: calls.append(args) or compose(*args))
    with composing():
        composer = Composer()
        for z in range(1, 20):
            cfg = composer.compose(["algorithm=dp_fts", f"privacy.z={z}"])
            assert cfg.privacy.z == z
        with pytest.raises(HydraException, match="zz"):
            composer.compose(["algorithm=dp_fts", "privacy.zz=1"])
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("given", "quoted_"),
    [
        ("results_dir=runs/ä", "results_dir='runs/ä'"),
        ("results_dir=runs/a", "results_dir=runs/a"),
        ("results_dir='runs/ä'", "results_dir='runs/ä'"),
        ("label=ä,b", "label=ä,b"),
        ("problem.space={ä: 1}", "problem.space={ä: 1}"),
        ("ä", "ä"),
    ],
)
def test_letters_beyond_ascii_are_quoted_for_hydra(given, quoted_):
    assert quoted(given) == quoted_


def test_a_folder_beyond_ascii_composes():
    assert compose(quoted("data_dir=runs/ä")).data_dir == "runs/ä"
