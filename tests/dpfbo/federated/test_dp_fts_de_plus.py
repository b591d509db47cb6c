"""The preset dp_fts_de_plus: what it changes, that it costs no epsilon, and that it helps."""

import numpy as np
import pytest
import torch

from dpfbo.federated import federation
from dpfbo.privacy.ledger import Ledger
from runners.compose.composition import build
from tests.helpers.compose import compose, setting_hash


@pytest.mark.parametrize("problem", ["synthetic", "branin"])
def test_preset_is_dp_fts_de_with_other_messages_and_tight_noise(problem):
    plus, paper = (compose(f"problem={problem}", f"algorithm={name}") for name in ("dp_fts_de_plus", "dp_fts_de"))
    changed = {key for key in paper.algorithm if plus.algorithm[key] != paper.algorithm[key]}
    assert changed == {"name", "message", "message_center", "message_normalize"}
    assert (plus.algorithm.message, plus.algorithm.message_normalize) == ("mean", True)
    assert {key for key in paper.privacy if plus.privacy[key] != paper.privacy[key]} == {"sensitivity"}
    assert (plus.privacy.sensitivity, paper.privacy.sensitivity) == ("tight", "paper")


def test_sensitivity_of_the_command_line_wins():
    plus = "algorithm=dp_fts_de_plus"
    assert build(compose(plus)).mechanism.calibration == "tight"
    assert build(compose(plus, "privacy.sensitivity=paper")).mechanism.calibration == "paper"
    assert build(compose("algorithm=dp_fts_de", "privacy.sensitivity=tight")).mechanism.calibration == "tight"
    assert setting_hash(compose(plus)) == setting_hash(compose(plus, "privacy.sensitivity=tight"))
    assert setting_hash(compose(plus)) != setting_hash(compose(plus, "privacy.sensitivity=paper"))


def test_noise_is_less_and_epsilon_is_the_same():
    plus, paper = (build(compose(f"algorithm={name}")) for name in ("dp_fts_de_plus", "dp_fts_de"))
    assert plus.plan.events == paper.plan.events
    assert plus.plan.epsilons() == paper.plan.epsilons()
    agents = paper.agents.regions.assign(torch.arange(200))
    concentrated, uniform = (paper.study.weights(t, agents, 2) for t in (0, 39))
    ratio = [plus.mechanism.sigma(w) / paper.mechanism.sigma(w) for w in (concentrated, uniform)]
    assert ratio == [pytest.approx(2**-0.5, rel=1e-6), pytest.approx(1.0)]


def test_messages_are_means_of_one_norm():
    """Every message has the clip norm S / sqrt(P), whatever its agent observed, and depends on no draw."""
    experiment = build(compose("algorithm=dp_fts_de_plus", "problem.n_agents=6", "rounds=1"))
    sent = federation.LocalPopulation.of(experiment.problem, experiment.agents).shard.step(0, None, send=True).messages
    bounded, _ = experiment.mechanism.bounded(sent, 2)
    assert bounded.norm(dim=1).numpy() == pytest.approx(11 / 2**0.5)
    assert (sent.norm(dim=1) - 11 / 2**0.5).abs().min() > 0.1  # as sent, they have other lengths


def test_centred_messages_do_not_depend_on_a_constant():
    """Observations that are all higher by the same amount make the same message if it is centred, another if not."""
    gains = {}
    for center in (True, False):
        experiment = build(compose("algorithm=dp_fts_de_plus", f"algorithm.message_center={center}", "rounds=1"))
        agents = experiment.agents
        state = agents.initial_state(torch.arange(4))
        u = agents.initial_query(state).u
        y = torch.linspace(0, 1, u.shape[1], dtype=torch.float64).expand(4, -1)
        sent = []
        for shift in (0.0, 5.0):
            seen = agents.initial_state(torch.arange(4))
            seen.append(u, y + shift)
            sent.append(agents.messages(seen, 0))
        gains[center] = (sent[1] - sent[0]).norm() / sent[0].norm()
    assert gains[True] < 1e-12
    assert gains[False] > 1


def test_preset_beats_the_paper_at_equal_epsilon(tmp_path):
    """Ten rounds of four functions, paired."""
    regret = {name: mean_regrets(name, tmp_path) for name in ("dp_fts_de", "dp_fts_de_plus")}
    assert regret["dp_fts_de_plus"].mean() < 0.75 * regret["dp_fts_de"].mean()
    assert (regret["dp_fts_de_plus"] < regret["dp_fts_de"]).sum() >= 3


def mean_regrets(algorithm, folder, seeds=range(100, 104)):
    """Each function's regret, its mean over agents and rounds 1..T."""
    result = []
    for seed in seeds:
        experiment = build(compose(f"algorithm={algorithm}", "rounds=10", f"seed={seed}"))
        server = experiment.server(Ledger(folder / f"{algorithm}{seed}.jsonl"))
        agents = federation.LocalPopulation.of(experiment.problem, experiment.agents)
        done = federation.run(agents, server, experiment.rounds).rounds
        result.append(np.mean([record.mean for record in done[1:]]))
    return np.array(result)
