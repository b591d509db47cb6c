"""The outsourced loop: the curator releases once; then the modeler proposes, and the curator measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpfbo.clock import PhaseClock
from dpfbo.formats.words import Source
from dpfbo.outsourced.curator import CuratorOutput, Measured
from dpfbo.outsourced.hyperparameters import Belief
from dpfbo.outsourced.modeler import Modeler, Policy
from dpfbo.outsourced.table import Public, ReleasedTable, Table
from dpfbo.outsourced.transforms import Transform
from dpfbo.records import RoundRecord
from dpfbo.rng import Streams
from dpfbo.run_result import OnRound, Result, Round

_MODELER = torch.zeros(1, dtype=torch.long, device="cpu")  # the modeler's agent number in the random streams


@dataclass(frozen=True)
class Brief:
    """All that the modeler knows at the start besides the release; a brief holds no seed and no row of the table.

    Args:
        transform: The curator's transform, whose settings are public; the modeler calls only `candidates`.
        public: The public facts of the table.
        belief: The modeler's GP. Its length-scale is scaled by the same factor as the rows (`Transform.scale`). The
            factor is public, except with `Plain` and `RandomProjection`, where it depends on the largest norm of the
            secret rows.
        policy: The rule by which the modeler chooses candidates.
        capacity: The largest number of measurements.
    """

    transform: Transform
    public: Public
    belief: Belief
    policy: Policy
    capacity: int


@dataclass
class OutsourcedResult(Result):
    """The finished rounds of an outsourced run, and the released table.

    Attributes:
        released: The values that the curator released in round 0; None before the release.
    """

    released: ReleasedTable | None = None

    def add(self, done: Round) -> None:
        super().add(done)
        if isinstance(done.broadcast, ReleasedTable):
            self.released = done.broadcast


class AnyCurator(Protocol):
    """A `dpfbo.outsourced.curator.Curator`, or a proxy of one."""

    def release(self) -> CuratorOutput: ...

    def resume(self, values: Tensor) -> None: ...

    def measure(self, t: int, indices: Sequence[int]) -> Measured: ...


class AnyModeler(Protocol):
    """A `LocalModeler`, or a proxy of one."""

    def start(self, values: Tensor) -> int:
        """Give the modeler the released values and return the number of candidates."""

    def propose(self, t: int, uniform: float) -> int:
        """Return the index of the candidate to measure in round t. uniform: a random number in [0, 1)."""

    def observe(self, t: int, indices: Sequence[int], y: Sequence[float]) -> None:
        """Give the modeler the measurements y of round t."""


@dataclass(frozen=True)
class Setup:
    """The inputs of an outsourced run other than its curator and its modeler.

    Args:
        table: The table of the problem, used only to write and check the records of the rounds.
        streams: The random numbers that choose the first candidates and, with a random policy, all others.
        n_init: The number of random candidates that are measured in round 0.
        rounds: T, the number of proposals.
    """

    table: Table
    streams: Streams
    n_init: int
    rounds: int


def run(
    curator: AnyCurator,
    modeler: AnyModeler,
    setup: Setup,
    on_round: OnRound = lambda done: None,
    result: OutsourcedResult | None = None,
) -> OutsourcedResult:
    """Run all rounds: the release and n_init random candidates in round 0, then a proposal in each of rounds 1..T.

    Args:
        curator: The curator.
        modeler: The modeler.
        setup: All other settings.
        on_round: A function that is called after every round.
        result: The rounds of a resumed run (after `restore`), to which new rounds are added; None for a new run.

    Returns:
        All rounds, and the released table.

    Example:
        >>> import dpfbo
        >>> grid, transform, streams = dpfbo.problems.GridGP(side_points=5), dpfbo.outsourced.Plain(), Streams(0)
        >>> curve = dpfbo.privacy.EpsilonCurve(dpfbo.accountant_named("pld"), planned=[], delta=0.1)
        >>> entropy = dpfbo.privacy.SeededEntropy(streams)
        >>> curator = dpfbo.outsourced.Curator(grid, transform, streams, entropy, dpfbo.Ledger(), curve, capacity=10)
        >>> modeler = LocalModeler(Brief(transform, grid.table.public, grid.prior, Policy(), capacity=10))
        >>> result = run(curator, modeler, Setup(grid.table, streams, n_init=2, rounds=3))
        >>> [record.y.shape[1] for record in result.rounds], result.released.values.shape  # measurements; n x d
        ([2, 1, 1, 1], torch.Size([25, 2]))
    """
    result = OutsourcedResult() if result is None else result
    for t in range(len(result.rounds), setup.rounds + 1):
        clock = PhaseClock()
        released, record, diagnostics, n_candidates = None, None, None, 0
        if t == 0:
            with clock("release"):
                released, record, diagnostics = curator.release()
            n_candidates = modeler.start(released.values)
        with clock("modeler"):
            indices = _candidates(t, modeler, setup, n_candidates)
        with clock("objective"):
            measured = curator.measure(t, indices)
        with clock("modeler"):
            modeler.observe(t, indices, measured.y)
        best = float(result.rounds[-1].best[0, -1]) if result.rounds else -torch.inf
        queries = _record(t, setup.table, measured, best)
        done = Round(queries, released, record, diagnostics, dict(clock.seconds))
        result.add(done)
        on_round(done)
    return result


def restore(curator: AnyCurator, modeler: AnyModeler, setup: Setup, result: OutsourcedResult) -> None:
    """Replay the finished rounds of an interrupted run with the curator and the modeler.

    Raises ValueError if the release, rows or answers differ from the record, which means that data or code changed.
    """
    if not result.rounds:
        return
    if result.released is None:
        raise ValueError("the checkpoint of an outsourced run must hold its release: delete the folder")
    curator.resume(result.released.values)
    n_candidates = modeler.start(result.released.values)
    for done in result.rounds:
        t, y = done.round, done.y[0].tolist()
        indices = _candidates(t, modeler, setup, n_candidates)
        measured = curator.measure(t, indices)
        if measured.y != y or not torch.equal(setup.table.natural[measured.rows], done.x[0]):
            raise ValueError(f"the repeated round {t} differs from the checkpoint: delete the folder to start anew")
        modeler.observe(t, indices, y)


def _candidates(t: int, modeler: AnyModeler, setup: Setup, n_candidates: int) -> list[int]:
    """Return the indices of the candidates to measure in round t.

    Round 0 measures `setup.n_init` random candidates, without repetition if there are at least `setup.n_init`
    candidates. Each later round measures one candidate, which the modeler proposes.
    """
    if t:
        return [modeler.propose(t, float(setup.streams.uniform("modeler", _MODELER, t, 1)))]
    free, chosen = list(range(n_candidates)), []
    for u in setup.streams.uniform("initial", _MODELER, 0, setup.n_init)[0].tolist():
        free = free or list(range(n_candidates))
        chosen.append(free.pop(int(u * len(free))))
    return chosen


def _record(t: int, table: Table, measured: Measured, best_before: float) -> RoundRecord:
    values = table.values[measured.rows]
    best = torch.cummax(values, 0).values.clamp(min=best_before)
    rows, (low, high) = table.rows[measured.rows], table.public.bounds
    source = torch.full((1, len(rows)), int(Source.modeler if t else Source.initial), device="cpu")
    return RoundRecord(
        t, torch.zeros(1, len(rows), dtype=torch.long, device="cpu"), source, ((rows - low) / (high - low))[None],
        table.natural[measured.rows][None], torch.tensor([measured.y], dtype=torch.float64, device="cpu"), best[None],
        (float(table.values.max()) - best)[None],
    )  # fmt: skip


class LocalModeler:
    """A modeler that runs in this process.

    Args:
        brief: All that the modeler knows besides the release.
    """

    def __init__(self, brief: Brief) -> None:
        self._brief = brief

    def start(self, values: Tensor) -> int:
        candidates = self._brief.transform.candidates(values, self._brief.public)
        self._modeler = Modeler(candidates, self._brief.belief, self._brief.policy, self._brief.capacity)
        return len(candidates.points)

    def propose(self, t: int, uniform: float) -> int:
        return self._modeler.propose(uniform)

    def observe(self, t: int, indices: Sequence[int], y: Sequence[float]) -> None:
        for index, value in zip(indices, y, strict=True):
            self._modeler.observe(index, value)
