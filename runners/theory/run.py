"""A finished private run, rebuilt from its files, and its clipped sets, computed again."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor
from yaml import YAMLError

from dpfbo import checks
from dpfbo.federated import theory
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.formats.bounded import MOST_RECORD, check_yaml, plain, read_plain
from dpfbo.privacy.accounting import check_delta
from dpfbo.privacy.entropy import SeededEntropy
from dpfbo.space.mixed import MixedBox
from runners.compose.composition import experiment_of, federated
from runners.compose.configuration import composed
from runners.compose.federated import FederatedExperiment
from runners.compose.instantiate import check_function, check_targets
from runners.compose.typed import is_outsourced, typed

ALLOW = "--allow {}"  # the option that lets a config.yaml name classes of another package

_UNREADABLE = (
    OSError, KeyError, TypeError, AttributeError, ArithmeticError, ValueError, RecursionError, pa.ArrowException,
    OmegaConfBaseException, YAMLError,
)  # fmt: skip


class TheoryError(RuntimeError):
    """There is no run to compute, or a run cannot be replayed; one sentence."""


@dataclass(frozen=True)
class RebuiltRun:
    """A finished private run, rebuilt, with its records. u, x: N x (n_init + T) x D; y: N x (n_init + T).

    server: the columns of server.parquet by name, one value for each broadcast.
    """

    folder: Path
    experiment: FederatedExperiment
    mechanism: SubsampledGaussian
    summary: dict[str, Any]
    x: Tensor
    y: Tensor
    server: dict[str, list[Any]]

    @property
    def u(self) -> Tensor:
        """The queries in the unit cube."""
        domain = self.experiment.problem.domain
        if isinstance(domain, MixedBox):
            raise ValueError("the theorem is about a box or a grid, and this problem has a space of parameters")
        low, high = (torch.tensor(bound, dtype=torch.float64) for bound in (domain.lower, domain.upper))
        return (self.x - low) / (high - low)

    @property
    def message_norm(self) -> float:
        """`S / sqrt(P)`."""
        return self.mechanism.message_norm(self.experiment.agents.regions.P)

    def history(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The new queries (unit cube, N x k x D) and observations (N x k) before each broadcast."""
        u, first = self.u, self.experiment.agents.n_init
        for t in range(len(self.server["round"])):
            rows = slice(0, first) if t == 0 else slice(first + t - 1, first + t)
            yield u[:, rows], self.y[:, rows]


def _check_numbers(summary: dict[str, Any]) -> None:
    """Raise ValueError, OverflowError, KeyError or TypeError for a summary without the numbers of `terms`."""
    checks.non_negative("n_charges of summary.json", summary["n_charges"])
    check_delta(summary["delta"])
    for name, epsilon in summary["epsilon"].items():
        if epsilon is not None:
            checks.non_negative(f"epsilon by {name} of summary.json", epsilon)


def read(folder: Path, data_dir: Path | None = None, allow: Sequence[str] = ()) -> RebuiltRun:
    """The finished private run in `folder`.

    data_dir: folder of the problem's data, None for that of the run. allow: packages and modules whose classes and
    functions its config.yaml may name (`compose.instantiate`).

    Raises TheoryError if the files do not belong to one private run, or if the data is missing.
    """
    try:
        summary = json.loads(read_plain(folder / "summary.json", MOST_RECORD))
        check_yaml(folder / "config.yaml")
        settings: Any = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
        if data_dir is not None and "data_dir" in settings["problem"]:
            settings["problem"]["data_dir"] = str(data_dir)
        settings = {**settings, "allow": list(allow)}
        check_targets(settings, allow, ALLOW)
        check_function(settings["problem"], allow, ALLOW)
        if is_outsourced(settings):
            raise ValueError(f"algorithm={settings['algorithm']['name']} has no agents that send messages")
        e = federated(experiment_of(typed({**settings, **_placement()})))
        queries = pq.read_table(plain(folder / "rounds.parquet"), columns=["x", "y"])
        server = pq.read_table(plain(folder / "server.parquet")).to_pydict()
        if not isinstance(e.mechanism, SubsampledGaussian):
            raise ValueError("it is not private")
        if len(queries) != e.problem.n_agents * (e.agents.n_init + e.rounds):
            raise ValueError(f"rounds.parquet has {len(queries)} rows, not those of config.yaml")
        x, y = (_by_agent(queries[name], e) for name in ("x", "y"))
        if x.shape[2] != e.problem.domain.dimension:
            raise ValueError(f"rounds.parquet has queries of {x.shape[2]} numbers, not those of config.yaml")
        _check_numbers(summary)
        return RebuiltRun(folder, e, e.mechanism, summary, x, y[..., 0], server)
    except _UNREADABLE as error:
        raise TheoryError(f"{folder} cannot be replayed: {error}") from error


@cache
def _placement() -> dict[str, Any]:
    """The settings `executor` and `tracker` of this process, in place of those that the run had."""
    here: Any = OmegaConf.to_container(composed(), resolve=True)
    return {name: here[name] for name in ("executor", "tracker")}


def _by_agent(column: pa.ChunkedArray, e: FederatedExperiment) -> Tensor:
    """A column of rounds.parquet (the first round's n_init rows of every agent, then a row of each): N x .. x D."""
    N, n_init = e.problem.n_agents, e.agents.n_init
    numbers = column.combine_chunks()
    plain = numbers.flatten() if pa.types.is_list(numbers.type) else numbers
    values = torch.tensor(plain.to_numpy()).view(N * (n_init + e.rounds), -1)
    first, later = values[: N * n_init].view(N, n_init, -1), values[N * n_init :].view(e.rounds, N, -1)
    return torch.cat([first, later.transpose(0, 1)], 1)


def clipped_sets(run: RebuiltRun) -> Tensor:
    """C_t of every broadcast (broadcasts x N), from the messages computed again.

    Raises TheoryError if S_t can be drawn again and the number of its clipped messages is not the recorded one.
    """
    e = run.experiment
    messages = theory.replayed_messages(e.agents, e.problem.n_agents, run.history())
    in_C = torch.stack([theory.clipped(m, run.message_norm) for m in messages])
    if not checked(e):
        return in_C
    for t, mask in enumerate(in_C):
        chosen = run.mechanism.choose(len(mask), SeededEntropy(e.study.streams), t)
        found = int((mask & chosen & ~e.study.dropout.lost(len(mask), t)).sum())
        recorded = round((run.server["clip_fraction"][t] or 0.0) * run.server["n_chosen"][t])
        if found != recorded:
            raise TheoryError(
                f"{run.folder} cannot be replayed: round {t} clips {found} of the chosen messages now and clipped "
                f"{recorded} then (another version, or other data?)"
            )
    return in_C


def checked(experiment: FederatedExperiment) -> bool:
    """True if the subsets S_t can be drawn again, to compare the replay with the record."""
    return experiment.settings.privacy.seeded and experiment.settings.dropout.deadline is None
