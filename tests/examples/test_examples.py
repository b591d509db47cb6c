"""Each example runs, with small sizes, and does what it says."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import dpfbo
from dpfbo.gp import Acquisition, OwnDraw, OwnGP

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """A function that returns the module of an example; processes that it starts find it, too."""

    def load(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    monkeypatch.syspath_prepend(str(EXAMPLES))
    return load


def test_every_example_is_short_listed_and_tested():
    listed = re.findall(r"\]\((\w+)\.py\)", (EXAMPLES / "README.md").read_text())
    assert sorted(listed) == sorted(path.stem for path in EXAMPLES.glob("*.py"))
    own = Path(__file__).read_text()
    for name in listed:
        assert 20 <= len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 60, name
        assert f'example("{name}")' in own


def test_one_call(example, capsys):
    result = example("one_call").main(rounds=2, sites=4)
    assert result.epsilon <= 1 and len(result.best()) == 4
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_ask_and_tell(example, tmp_path, capsys):
    example("ask_and_tell").main(rounds=1, folder=tmp_path)
    assert re.fullmatch(r"released once, epsilon 4.00\nsite 0: .*\nsite 1: .*\n", capsys.readouterr().out)
    assert len(dpfbo.Ledger(tmp_path / "server" / "ledger.jsonl").charges) == 1


def test_privacy_budget(example, tmp_path, capsys):
    assert example("privacy_budget").main(agents=20, rounds=5, folder=tmp_path) == pytest.approx(2, rel=1e-3)
    said = capsys.readouterr().out
    assert re.search(r"epsilon 2 needs z = [\d.]+; epsilon 1.5 pays for [1-4] such rounds", said)
    assert "5 broadcasts, epsilon 2.00 at delta 1e-05, relation zero-out" in said


def test_own_weighting(example):
    softmax, own = example("own_weighting").main(agents=12, rounds=7)
    assert softmax.epsilon == pytest.approx(own.epsilon)
    first, last = (own.result.server[t] for t in (0, -1))
    assert first.sigma > last.sigma and first.epsilon < last.epsilon


def test_outsourced(example, capsys):
    regrets = example("outsourced").main(side_points=12, rounds=5)
    assert all(regret >= 0 for regret in regrets.values()) and len(regrets) == 3
    assert capsys.readouterr().out.count("epsilon 3.00") == 1


def test_paper_algorithms_make_the_queries_of_the_library(example):
    N, T = 30, 6
    x = example("paper_algorithms").main(N=N, T=T, N_init=4)
    problem = dpfbo.problems.Synthetic(n_agents=N)
    preset = dpfbo.Preset(
        M=50, lengthscale=0.03, own_gp=OwnGP(fit="given", lengthscale=0.03, variance=1.0, noise=0.01),
        own_draw=OwnDraw("exact"), sampling_probability=0.25,
    )  # fmt: skip
    study = dpfbo.create_study(
        problem.domain, n_agents=N, algorithm="dp_fts_de", noise_multiplier=1.0, rounds=T, n_init=4, rng="seeded",
        preset=preset, acquisition=Acquisition(),
    )  # fmt: skip
    assert study.mechanism.clip_norm == 11.0
    found = dpfbo.run_study(study, problem).result.rounds
    assert torch.equal(x, torch.cat([record.u for record in found], 1))
