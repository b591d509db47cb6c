"""The public names of the packages: they resolve, type checkers see them, and importing a package loads nothing."""

import subprocess
import sys
from importlib import import_module

import pytest

import dpfbo
from dpfbo import lazy

ROOMS = ("federated", "gp", "outsourced", "privacy", "problems", "secure", "space")
NAMES = [(room, name) for room in ("", *ROOMS) for name in import_module(f"dpfbo.{room}".rstrip(".")).__all__]


@pytest.mark.parametrize(("room", "name"), NAMES)
def test_every_name_resolves(room, name):
    package = getattr(dpfbo, room) if room else dpfbo
    value = getattr(package, name)
    own = "run" if name in ("run_federated", "run_outsourced") else name
    assert value.__module__.startswith("dpfbo.") and value.__name__ == own
    assert name in dir(package)


@pytest.mark.parametrize("room", ROOMS)
def test_type_checkers_see_the_same_names(room):
    assert sorted(lazy.places(f"dpfbo.{room}")) == getattr(dpfbo, room).__all__


def test_the_package_itself_has_few_names_and_its_rooms():
    assert sorted(lazy.places("dpfbo")) == sorted([*dpfbo.__all__, *ROOMS])
    assert dpfbo.__all__ == sorted(dpfbo.__all__) and len(dpfbo.__all__) <= 40


def test_another_name_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'dpfbo' has no attribute 'Agnet'"):
        dpfbo.Agnet  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'dpfbo\.problems' has no attribute 'Brain'"):
        dpfbo.problems.Brain  # noqa: B018


def test_a_name_of_a_room_says_its_room():
    with pytest.raises(AttributeError, match=r"no attribute 'Branin': it is dpfbo\.problems\.Branin$"):
        dpfbo.Branin  # noqa: B018


def loaded(code):
    """The modules that a new process has loaded after `code`."""
    code = f"import os, sys, dpfbo; {code}; assert os.environ['MKL_CBWR'] == 'AUTO'; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_the_package_loads_none_of_its_rooms():
    modules = loaded("pass")
    assert not {"torch", "numpy", "scipy", "dp_accounting"} & modules
    assert {name for name in modules if name.startswith("dpfbo")} == {"dpfbo", "dpfbo.lazy"}


def test_processes_of_agents_and_modelers_load_no_problem_and_no_accountant():
    modules = loaded("dpfbo.federated.Agents, dpfbo.federated.Server, dpfbo.outsourced.LocalModeler, dpfbo.Problem")
    assert "dp_accounting" not in modules
    assert {name for name in modules if name.startswith("dpfbo.problems.")} == {"dpfbo.problems.problem"}
    assert not {name for name in modules if name.startswith("dpfbo.privacy.accounting.pld")}


def test_both_loops_run_on_public_names_alone():
    federated, outsourced = dpfbo.federated, dpfbo.outsourced
    streams, curve = dpfbo.Streams(0), dpfbo.privacy.EpsilonCurve(dpfbo.accountant_named("pld"), [], 0.1)
    entropy, ledger = dpfbo.privacy.SeededEntropy(streams), dpfbo.Ledger()
    problem = dpfbo.problems.Synthetic(n_agents=4, grid_size=40, lengthscale=0.1)
    features = dpfbo.gp.shared_features(20, 1, 0.1, streams.generator("features"))
    regions = dpfbo.space.Regions(2, 1)
    agents = federated.Agents(problem.domain, regions, features, streams, 2, 3, 0.01, "inverse_sqrt")
    mechanism = federated.SubsampledGaussian(sampling_probability=0.5, noise_multiplier=1.0, clip_norm=2.0)
    server = federated.Server(4, 20, regions, federated.Uniform(), mechanism, entropy, ledger, curve)
    result = federated.run_federated(federated.LocalPopulation.of(problem, agents), server, 2)
    assert (len(result.rounds), len(result.server), len(ledger.charges)) == (3, 2, 2)

    grid, transform = dpfbo.problems.GridGP(side_points=5), outsourced.Plain()
    curator = outsourced.Curator(grid, transform, streams, entropy, dpfbo.Ledger(), curve, capacity=4)
    belief = outsourced.Belief(1.0, 1.0, 0.01, 0.0)
    brief = outsourced.Brief(transform, grid.table.public, belief, outsourced.Policy(), 4)
    setup = outsourced.Setup(grid.table, streams, n_init=2, rounds=2)
    found = outsourced.run_outsourced(curator, outsourced.LocalModeler(brief), setup)
    assert [record.y.shape[1] for record in found.rounds] == [2, 1, 1]
