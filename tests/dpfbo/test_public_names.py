"""The public names of the package: they resolve, type checkers see them, and importing the package loads nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dpfbo


@pytest.mark.parametrize("name", dpfbo.__all__)
def test_every_name_resolves(name):
    value = getattr(dpfbo, name)
    own = "run" if name in ("run_federated", "run_outsourced") else name
    assert value.__module__.startswith("dpfbo.") and value.__name__ == own
    assert name in dir(dpfbo)


def test_type_checkers_see_the_same_names():
    block = next(node for node in ast.parse(Path(dpfbo.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: (node.module.removeprefix("dpfbo.").replace(".", "/"), alias.name)
        for node in block.body
        for alias in node.names
    }
    assert seen == dpfbo._PLACES
    assert sorted(seen) == dpfbo.__all__


def test_another_name_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'dpfbo' has no attribute 'Agnet'"):
        dpfbo.Agnet  # noqa: B018


def loaded(code):
    """The modules that a new process has loaded after `code`."""
    code = f"import os, sys, dpfbo; {code}; assert os.environ['MKL_CBWR'] == 'AUTO'; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_the_package_loads_none_of_its_modules():
    modules = loaded("pass")
    assert not {"torch", "numpy", "scipy", "dp_accounting"} & modules
    assert {name for name in modules if name.startswith("dpfbo")} == {"dpfbo"}


def test_processes_of_agents_and_modelers_load_no_problem_and_no_accountant():
    modules = loaded("dpfbo.Agents, dpfbo.Server, dpfbo.LocalModeler, dpfbo.Problem")
    assert "dp_accounting" not in modules
    assert not {name for name in modules if name.startswith(("dpfbo.problems.", "dpfbo.privacy.accounting.pld"))}


def test_both_loops_run_on_public_names_alone():
    streams, curve = dpfbo.Streams(0), dpfbo.EpsilonCurve(dpfbo.accountant_named("pld"), [], 0.1)
    entropy, ledger = dpfbo.SeededEntropy(streams), dpfbo.Ledger()
    problem = dpfbo.Synthetic(n_agents=4, grid_size=40, lengthscale=0.1)
    features = dpfbo.shared_features(20, 1, 0.1, streams.generator("features"))
    agents = dpfbo.Agents(problem.domain, dpfbo.Regions(2, 1), features, streams, 2, 3, 0.01, "inverse_sqrt")
    mechanism = dpfbo.SubsampledGaussian(sampling_probability=0.5, noise_multiplier=1.0, clip_norm=2.0)
    server = dpfbo.Server(4, 20, agents.regions, dpfbo.Uniform(), mechanism, entropy, ledger, curve)
    federated = dpfbo.run_federated(dpfbo.LocalPopulation.of(problem, agents), server, 2)
    assert (len(federated.rounds), len(federated.server), len(ledger.charges)) == (3, 2, 2)

    grid, transform = dpfbo.GridGP(side_points=5), dpfbo.Plain()
    curator = dpfbo.Curator(grid, transform, streams, entropy, dpfbo.Ledger(), curve, capacity=4)
    brief = dpfbo.Brief(transform, grid.table.public, dpfbo.Belief(1.0, 1.0, 0.01, 0.0), dpfbo.Policy(), 4)
    setup = dpfbo.Setup(grid.table, streams, n_init=2, rounds=2)
    outsourced = dpfbo.run_outsourced(curator, dpfbo.LocalModeler(brief), setup)
    assert [record.y.shape[1] for record in outsourced.rounds] == [2, 1, 1]
