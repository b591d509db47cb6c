"""The terms of Theorem 1 and the condition of Proposition 1 for one finished run: the contents of theory.json."""

import math
from typing import Any

import torch
from torch import Tensor

from dpfbo.federated import theory
from dpfbo.federated.population.agents import FOLLOW_PROBABILITY
from dpfbo.space.domain import Grid
from runners.compose.federated import FederatedExperiment
from runners.theory.run import RebuiltRun, checked, clipped_sets

_CANDIDATES = 1024  # points of a box at which gamma_t and eps are computed
_MOST_CANDIDATES = 4096  # points of a grid; a larger grid is thinned evenly
_AGENTS = 1024  # agents of a block

COLUMNS = {
    "gamma": "gamma_t, greedy information gain of t observations",
    "follow": "1 - p_t, probability to follow the broadcast",
    "Delta": "Delta_t, sum over the agents of Delta_{n,t}",
    "psi": "psi_t",
    "clipped": "|C_t|, agents whose message was longer than S / sqrt(P)",
    "vartheta": "vartheta_t",
    "regret": "measured: cumulative regret against the reference of the run's metric, mean over the agents",
}


def terms(run: RebuiltRun, norm_bound: float) -> dict[str, Any]:
    """The contents of theory.json. norm_bound: B."""
    e, in_C = run.experiment, clipped_sets(run)
    a, T, N, P = e.agents, e.rounds, e.problem.n_agents, e.agents.regions.P
    sent, M = len(in_C), a.features.frequencies.shape[1]
    candidates = _candidates(e)
    K = theory.se_kernel(candidates, e.settings.algorithm.lengthscale)
    eps = theory.feature_error(K, a.features(candidates[None])[0])
    gamma = theory.greedy_information_gain(K, T, a.message_noise)
    d, d_exact = _disagreement(run, candidates)
    Delta = theory.agent_errors(gamma, norm_bound, eps, M, d).sum(1)
    follow = torch.tensor([FOLLOW_PROBABILITY[a.follow](t) for t in range(1, T + 1)], dtype=torch.float64)
    follow[sent:] = 0  # later rounds have no broadcast
    weights = torch.stack([e.weighting(t, a.regions.assign(torch.arange(N)), P) for t in range(T)])  # T x P x N
    sigma = torch.zeros(T, dtype=torch.float64)
    sigma[:sent] = torch.tensor(run.server["sigma"], dtype=torch.float64)
    in_C = torch.cat([in_C, torch.zeros(T - sent, N, dtype=torch.bool)])
    columns = {
        "gamma": gamma,
        "follow": follow,
        "Delta": Delta,
        "psi": theory.psi(follow, weights, run.mechanism.sampling_probability, Delta, sigma, M),
        "clipped": in_C.sum(1),
        "vartheta": theory.vartheta(follow, weights, in_C),
        "regret": _regret(run),
    }
    known = {name: values.tolist() for name, values in columns.items() if values is not None}
    return {
        "columns": {name: COLUMNS[name] for name in known},
        "rounds": [{"round": t + 1, **{name: values[t] for name, values in known.items()}} for t in range(T)],
        "proposition_1": proposition_1(run),
        "inputs": {
            "B": norm_bound, "p_1": 1 - float(follow[0]), "lambda": a.message_noise, "eps": eps, "d": float(d.mean()),
            "d_is": "exact on the candidates" if d_exact else "the range of all observations, an estimate",
            "replay_checked": checked(e),
        },
        "note": note(e, norm_bound),
    }  # fmt: skip


def proposition_1(run: RebuiltRun) -> dict[str, Any]:
    """The constants of Proposition 1 at which it holds with the epsilon of each accountant."""
    s, q, T = run.summary, run.mechanism.sampling_probability, run.summary["n_charges"]
    z = min(run.mechanism.multiplier(t) for t in range(run.experiment.rounds))
    numbers: dict[str, Any] = {"z": z, "q": q, "T": T, "delta": s["delta"], "q2_T": q**2 * T}
    finite = {name: epsilon for name, epsilon in s["epsilon"].items() if epsilon}
    for name, epsilon in finite.items():
        numbers |= {
            f"epsilon_{name}": epsilon,
            f"c1_{name}": theory.smallest_c1(epsilon, q, T),
            f"c2_{name}": theory.largest_c2(z, epsilon, q, T, s["delta"]),
        }
    by = s["accountant"]
    if by not in finite:
        return {**numbers, "words": f"no finite epsilon by {by}: there is nothing to compare"}
    words = (
        f"with the epsilon of {by}, z >= c2 q sqrt(T log(1/delta)) / epsilon holds for c2 up to "
        f"{numbers[f'c2_{by}']:.3g} and epsilon < c1 q^2 T for c1 above {numbers[f'c1_{by}']:.3g}; the proposition "
        "only says that there are such constants"
    )
    return {**numbers, "words": words}


def note(e: FederatedExperiment, norm_bound: float) -> str:
    """Sentences on the meaning of the numbers, and on the settings that Theorem 1 does not cover."""
    a, s = e.settings.algorithm, e.settings
    outside = [
        *(["p_1 = 0 makes (B + 1/p_1) gamma_T sqrt(T) infinite"] if FOLLOW_PROBABILITY[a.follow](1) == 1 else []),
        *([f"message {a.message}"] if a.message != "sample" else []),
        *(["centred observations"] if a.message_center else []),
        *(["normalised messages"] if a.message_normalize else []),
        *([f"momentum {a.momentum:g}"] if a.momentum else []),
        *(["dropout"] if s.dropout.probability else []),
        *(["subsets of fixed size"] if s.privacy.mechanism.sampling != "poisson" else []),
    ]
    words = (
        "Terms of upper bounds up to constants and logarithms, not predictions: every constant hidden in O~ is 1, "
        f"B = {norm_bound:g} is assumed (dpfbo/federated/theory.py has the formulas and how far they were checked)"
    )
    return f"{words}; outside Theorem 1: {', '.join(outside)}" if outside else words


def _candidates(e: FederatedExperiment) -> Tensor:
    """The points of the unit cube at which gamma_t and eps are computed, n x D."""
    domain = e.problem.domain
    if isinstance(domain, Grid):
        return domain.unit_points[:: math.ceil(len(domain.unit_points) / _MOST_CANDIDATES)]
    return torch.quasirandom.SobolEngine(domain.dimension).draw(_CANDIDATES, dtype=torch.float64)


def _disagreement(run: RebuiltRun, u: Tensor) -> tuple[Tensor, bool]:
    """`d_n = max_x |f_1(x) - f_n(x)|` over the candidates, N, and True.

    If the objectives are not known without evaluation, the range of all observations, and False.
    """
    problem = run.experiment.problem
    x, unknown = problem.domain.to_natural(u), torch.full((1, len(u)), torch.nan, dtype=torch.float64)

    def values(ids: Tensor) -> Tensor:
        n = len(ids)
        return problem.true_value(ids, x.expand(n, *x.shape), unknown.expand(n, -1))

    first = values(torch.arange(1))
    if first.isnan().any():
        return (run.y.max() - run.y.min()).expand(problem.n_agents), False
    parts = torch.arange(problem.n_agents).split(_AGENTS)
    return torch.cat([(values(ids) - first).abs().amax(1) for ids in parts]), True


def _regret(run: RebuiltRun) -> Tensor | None:
    """Cumulative regret after rounds 1..T, mean over the agents; None where no optimum is known."""
    problem, n_init = run.experiment.problem, run.experiment.agents.n_init
    if problem.reference is None:
        return None
    x, y = run.x[:, n_init:], run.y[:, n_init:]
    value = problem.true_value(torch.arange(problem.n_agents), x, y)
    return (problem.reference[:, None] - value).cumsum(1).mean(0)
