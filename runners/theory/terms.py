"""The terms of Theorem 1 and the condition of Proposition 1 for one finished run: the contents of theory.json."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from omegaconf import OmegaConf
from torch import Tensor

from dpfbo.federated import theory
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.population.agents import FOLLOW_PROBABILITY
from dpfbo.formats.bounded import plain
from dpfbo.gp.draws import ConfidenceScale
from dpfbo.privacy.entropy import SeededEntropy
from dpfbo.records import Shown
from dpfbo.space.domain import Grid
from dpfbo.space.mixed import MixedBox
from runners.compose.composition import experiment_of, federated
from runners.compose.federated import FederatedExperiment
from runners.compose.typed import typed
from runners.replay import recorded

_CANDIDATES = 1024  # points of a box at which gamma_t and eps are computed
_MOST_CANDIDATES = 4096  # most points of a grid; a larger grid is thinned evenly
_AGENTS = 1024  # agents per block
DELTA = 0.1  # default of the probability that the bounds with explicit constants fail

COLUMNS = {
    "gamma": "gamma_t, greedy information gain of t observations",
    "follow": "1 - p_t, probability of following the broadcast",
    "Delta": "Delta_t, sum over the agents of Delta_{n,t}",
    "psi": "psi_t",
    "Delta_explicit": "Delta_t with the constants that dpfbo/federated/theory.py derives, for lambda = 1 + 2 / T",
    "psi_explicit": "psi_t with the constants of Lemma 6, and Delta_explicit",
    "clipped": "|C_t|, agents whose message was longer than S / sqrt(P)",
    "vartheta": "vartheta_t",
    "regret": "measured: cumulative regret against the reference of the run's metric, mean over the agents",
}


class NoTerms(RuntimeError):
    """The bound does not apply to this run; the message is the reason."""


@dataclass(frozen=True)
class RebuiltRun:
    """A finished private run, rebuilt from its settings and records.

    u, x: queries in the unit cube and in natural units, N x (n_init + T) x D. y: observations, N x (n_init + T).
    server: the columns of server.parquet by name, with one value for each broadcast.
    """

    experiment: FederatedExperiment
    mechanism: SubsampledGaussian
    summary: dict[str, Any]
    u: Tensor
    x: Tensor
    y: Tensor
    server: dict[str, list[Any]]

    @property
    def message_norm(self) -> float:
        """`S / sqrt(P)`, the norm to which messages are clipped."""
        return self.mechanism.message_norm(self.experiment.agents.regions.P)

    @property
    def checkable(self) -> bool:
        """True if the run's random subsets S_t of the agents can be reproduced."""
        settings = self.experiment.settings
        return settings.privacy.seeded and settings.dropout.deadline is None

    def history(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield queries (unit cube, N x k x D) and observations (N x k), one pair for each broadcast.

        The first pair has the initial queries. Each later pair has the queries since the previous broadcast.
        """
        first = self.experiment.agents.n_init
        for t in range(len(self.server["round"])):
            rows = slice(0, first) if t == 0 else slice(first + t - 1, first + t)
            yield self.u[:, rows], self.y[:, rows]


def read(folder: Path, data_dir: Path | None = None, allow: Sequence[str] = ()) -> RebuiltRun:
    """Rebuild the finished private run in `folder`.

    data_dir: folder of the problem's data; None for the folder in the run's settings. allow: further packages and
    modules from which the run's config.yaml is permitted to use classes and functions (see `compose.instantiate`).
    Raises NoTerms if the regret bound does not apply to the run.
    """
    cfg, summary = recorded(folder, allow, "--allow {}")
    if not summary["private"]:
        raise NoTerms("it shares nothing, or not privately: nothing is clipped")
    if summary["rng"] == "os":
        raise NoTerms("its releases are real, and do not reveal whose messages were clipped")
    if not summary["n_charges"]:
        raise NoTerms("it released nothing")
    if data_dir is not None and "data_dir" in cfg.problem:
        cfg.problem.data_dir = str(data_dir)
    settings: Any = OmegaConf.to_container(cfg, resolve=True)
    e = federated(experiment_of(typed(settings)))
    if e.settings.algorithm.has_prior:
        raise NoTerms("its agents send no draws of eq. 2, and nobody follows its one release with probability 1 - p_t")
    domain = e.problem.domain
    if not isinstance(e.mechanism, SubsampledGaussian):
        raise ValueError("it is not private")
    if isinstance(domain, MixedBox):
        raise ValueError("the theorem is about a box or a grid, and this problem has a space of parameters")
    queries = pq.read_table(plain(folder / "rounds.parquet"), columns=["x", "y"])
    if len(queries) != e.problem.n_agents * (e.agents.n_init + e.rounds):
        raise ValueError(f"rounds.parquet has {len(queries)} rows, which does not fit config.yaml")
    x, y = (_by_agent(queries[name], e) for name in ("x", "y"))
    y = Shown.of(e.problem).sign * y
    if x.shape[2] != domain.dimension:
        raise ValueError(f"rounds.parquet has queries of {x.shape[2]} numbers, unlike config.yaml")
    low, high = (torch.tensor(bound, dtype=torch.float64) for bound in (domain.lower, domain.upper))
    server = pq.read_table(plain(folder / "server.parquet")).to_pydict()
    return RebuiltRun(e, e.mechanism, summary, (x - low) / (high - low), x, y[..., 0], server)


def _by_agent(column: pa.ChunkedArray, e: FederatedExperiment) -> Tensor:
    """Reshape a column of rounds.parquet to N x (n_init + T) x D.

    The column begins with n_init rows for each agent; after them, each round has one row for each agent.
    """
    N, n_init = e.problem.n_agents, e.agents.n_init
    numbers = column.combine_chunks()
    plain = numbers.flatten() if pa.types.is_list(numbers.type) else numbers
    values = torch.tensor(plain.to_numpy()).view(N * (n_init + e.rounds), -1)
    first, later = values[: N * n_init].view(N, n_init, -1), values[N * n_init :].view(e.rounds, N, -1)
    return torch.cat([first, later.transpose(0, 1)], 1)


def clipped_sets(run: RebuiltRun) -> Tensor:
    """Recompute the messages, and return the sets C_t of agents with clipped messages, as booleans (broadcasts x N).

    Raises ValueError if, in a round, the number of clipped messages of the sampled agents differs from the run's
    record. This check is left out if the random samples of agents cannot be reproduced (`run.checkable` is False).
    """
    e = run.experiment
    messages = theory.replayed_messages(e.agents, e.problem.n_agents, run.history())
    in_C = torch.stack([theory.clipped(m, run.message_norm) for m in messages])
    for t, mask in enumerate(in_C if run.checkable else ()):
        chosen = run.mechanism.choose(len(mask), SeededEntropy(e.study.streams), t)
        found = int((mask & chosen & ~e.study.dropout.lost(len(mask), t)).sum())
        then = round((run.server["clip_fraction"][t] or 0.0) * run.server["n_chosen"][t])
        if found != then:
            said = f"round {t} clips {found} of the chosen messages in the replay, and clipped {then} in the run"
            raise ValueError(f"{said} (another version, or other data?)")
    return in_C


def terms(run: RebuiltRun, norm_bound: float, noise_sd: float | None = None, delta: float = DELTA) -> dict[str, Any]:
    """Return the contents of theory.json: the terms of Theorem 1 for each round, and the condition of Proposition 1.

    Raises ValueError if the run's records do not fit its settings.

    norm_bound: B, a bound on the RKHS norm of every objective. noise_sd: R, the standard deviation of the observation
    noise; None for that of the problem. If R is unknown or 0, the terms with explicit constants are left out. delta:
    the probability that the bounds with explicit constants fail.
    """
    e, in_C = run.experiment, clipped_sets(run)
    a, T, N, P = e.agents, e.rounds, e.problem.n_agents, e.agents.regions.P
    sent, M = len(in_C), a.features.size
    candidates = _candidates(e)
    K = theory.se_kernel(candidates, e.settings.algorithm.lengthscale)
    eps = theory.feature_error(K, a.features(candidates[None])[0])
    gains = theory.greedy_information_gain(K, a.n_init - 1 + T, a.message_noise)
    gamma, of_messages = gains[:T], gains[a.n_init - 1 :]  # of t observations; of those in round t's messages
    d, d_exact = _disagreement(run, candidates)
    Delta = theory.agent_errors(gamma, norm_bound, eps, M, d).sum(1)
    follow = torch.tensor([FOLLOW_PROBABILITY[a.follow](t) for t in range(1, T + 1)], dtype=torch.float64)
    follow[sent:] = 0  # later rounds have no broadcast
    weights = torch.stack([e.study.weights(t, a.regions.assign(torch.arange(N)), P) for t in range(T)])  # T x P x N
    sigma = torch.zeros(T, dtype=torch.float64)
    sigma[:sent] = torch.tensor(run.server["sigma"], dtype=torch.float64)
    in_C = torch.cat([in_C, torch.zeros(T - sent, N, dtype=torch.bool)])
    q = run.mechanism.sampling_probability
    columns = {
        "gamma": gamma,
        "follow": follow,
        "Delta": Delta,
        "psi": theory.psi(follow, weights, q, Delta, sigma, M),
        "clipped": in_C.sum(1),
        "vartheta": theory.vartheta(follow, weights, in_C),
    }
    R = math.sqrt(e.problem.noise_variance or 0) if noise_sd is None else noise_sd
    if R > 0:
        confidence, counts = ConfidenceScale(norm_bound, R, delta), a.n_init + torch.arange(T, dtype=gamma.dtype)
        errors = theory.explicit_agent_errors(of_messages, counts, confidence, eps, a.message_noise, M, T, d).sum(1)
        columns["Delta_explicit"] = errors
        columns["psi_explicit"] = theory.explicit_psi(follow, weights, q, errors, sigma, M, norm_bound, delta)
    if (reference := e.problem.reference) is not None:
        x, y = run.x[:, a.n_init :], run.y[:, a.n_init :]
        value = e.problem.true_value(torch.arange(N), x, y)
        columns["regret"] = (reference[:, None] - value).cumsum(1).mean(0)
    known = {name: values.tolist() for name, values in columns.items()}
    return {
        "columns": {name: COLUMNS[name] for name in known},
        "rounds": [{"round": t + 1, **{name: values[t] for name, values in known.items()}} for t in range(T)],
        "proposition_1": proposition_1(run),
        "inputs": {
            "B": norm_bound, "R": R or None, "failure_probability": delta, "p_1": 1 - float(follow[0]),
            "lambda": a.message_noise, "eps": eps, "d": float(d.mean()),
            "d_is": "exact on the candidates" if d_exact else "the range of all observations, an estimate",
            "replay_checked": run.checkable,
        },
        "note": note(e, norm_bound),
    }  # fmt: skip


def proposition_1(run: RebuiltRun) -> dict[str, Any]:
    """Return the bounds on Proposition 1's constants c1 and c2, one pair for the epsilon of each accountant."""
    s, q, T = run.summary, run.mechanism.sampling_probability, run.summary["n_charges"]
    z = min(run.mechanism.multiplier(t) for t in range(run.experiment.rounds))
    numbers: dict[str, Any] = {"z": z, "q": q, "T": T, "delta": s["delta"], "q2_T": q**2 * T}
    for name, epsilon in s["epsilon"].items():
        if epsilon:
            numbers |= {
                f"epsilon_{name}": epsilon,
                f"c1_{name}": theory.smallest_c1(epsilon, q, T),
                f"c2_{name}": theory.largest_c2(z, epsilon, q, T, s["delta"]),
            }
    by = s["accountant"]
    if f"c1_{by}" not in numbers:
        return {**numbers, "words": f"no finite epsilon by {by}: there is nothing to compare"}
    words = (
        f"with the epsilon of {by}, z >= c2 q sqrt(T log(1/delta)) / epsilon holds for c2 up to "
        f"{numbers[f'c2_{by}']:.3g} and epsilon < c1 q^2 T for c1 above {numbers[f'c1_{by}']:.3g}; the proposition "
        "only states that such constants exist"
    )
    return {**numbers, "words": words}


def note(e: FederatedExperiment, norm_bound: float) -> str:
    """Return sentences on the meaning of the numbers, and on the settings that Theorem 1 does not cover."""
    a, s = e.settings.algorithm, e.settings
    not_covered = {
        "p_1 = 0 makes (B + 1/p_1) gamma_T sqrt(T) infinite": FOLLOW_PROBABILITY[a.follow](1) == 1,
        f"lambda = {a.message_noise:g} instead of 1 + 2/T": a.message_noise != theory.regularization(e.rounds),
        "own draws that beta_t does not scale": a.own_draw.scale is None,
        f"message {a.message}": a.message != "sample",
        "centred observations": a.message_center,
        "normalised messages": a.message_normalize,
        f"momentum {a.momentum:g}": a.momentum,
        "dropout": s.dropout.probability,
        "subsets of fixed size": s.privacy.mechanism.sampling != "poisson",
    }
    words = (
        "Terms of upper bounds up to constants and logarithms, not predictions: every constant hidden in O~ is 1, "
        f"except in the explicit columns; B = {norm_bound:g} is assumed (dpfbo/federated/theory.py has the formulas)"
    )
    outside = [name for name, applies in not_covered.items() if applies]
    return f"{words}; outside Theorem 1: {', '.join(outside)}" if outside else words


def _candidates(e: FederatedExperiment) -> Tensor:
    """Return the points of the unit cube at which gamma_t and the feature error eps are computed, n x D."""
    domain = e.problem.domain
    if isinstance(domain, Grid):
        return domain.unit_points[:: math.ceil(len(domain.unit_points) / _MOST_CANDIDATES)]
    return torch.quasirandom.SobolEngine(domain.dimension).draw(_CANDIDATES, dtype=torch.float64)


def _disagreement(run: RebuiltRun, u: Tensor) -> tuple[Tensor, bool]:
    """Return N differences `d_n = max_x |f_1(x) - f_n(x)|` over the candidates u, and True if they are exact.

    If the noiseless objectives are unknown, each d_n is the range of all observations, and the second value is False.
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
