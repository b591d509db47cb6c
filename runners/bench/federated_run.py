"""One federated run, timed by phase in a process of its own: by dpfbo, by the plain loop, or BoTorch's part of it."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from dpfbo.federated import federation
from dpfbo.federated.federation import FederatedResult, LocalPopulation
from dpfbo.federated.population.shard import Shard
from dpfbo.formats.words import Source
from dpfbo.privacy.ledger import Ledger
from dpfbo.records import RoundRecord
from dpfbo.space.domain import Grid, embedded_dimension
from runners.bench import plain_loop
from runners.bench.floors import RunShape, memory_mb, of_run
from runners.bench.machine import OperationRates
from runners.bench.measured_process import OnStep, Reply, peak_mb
from runners.bench.measurement import FLOOR_MB, Measurement, Spread
from runners.compose.composition import build, federated
from runners.compose.configuration import composed
from runners.compose.federated import FederatedExperiment

PHASES = ("objective", "message", "server", "fit", "acquisition", "own_draw")
_WARM_UP_ROUNDS = 3

Timed = tuple[dict[str, float], RunShape]


@dataclass(frozen=True)
class RunTask:
    """A run to time.

    by: `dpfbo`, `plain` (`runners.bench.plain_loop`), or `botorch` (fits and own draws of the same agents). overrides:
    of the experiment. repeats: runs at most; none begins after `seconds`. device: of dpfbo's tensors.
    warm_up: a short run goes before.
    """

    problem: str
    algorithm: str
    overrides: tuple[str, ...] = ()
    rounds: int | None = None
    seed: int = 0
    by: str = "dpfbo"
    repeats: int = 3
    seconds: float = 20.0
    device: str = "cpu"
    warm_up: bool = True

    def compose(self, rounds: int | None = None, *more: str) -> FederatedExperiment:
        """The experiment. rounds: None for those of the task, or as configured. Raises ValueError, MissingData."""
        rounds = self.rounds if rounds is None else rounds
        given = [] if rounds is None else [f"rounds={rounds}"]
        head = [f"problem={self.problem}", f"algorithm={self.algorithm}", f"seed={self.seed}"]
        return federated(build(composed([*head, *given, *self.overrides, *more])))


def run(on_step: OnStep, **task: Any) -> dict[str, Any]:
    """Time a `RunTask`.

    Returns `runs`, for each repeat the seconds by phase (`other`: outside the named ones; `total`; `cpu`), `start`,
    seconds to compose the experiment and to make its tables, `start_mb`, the memory before those tables, and `shape`,
    the `RunShape` as a dictionary.
    """
    asked = RunTask(**{**task, "overrides": tuple(task["overrides"])})
    timed = {"dpfbo": _dpfbo, "plain": _plain, "botorch": _botorch}[asked.by]
    begin = time.perf_counter()
    experiment = asked.compose()
    start = time.perf_counter() - begin
    if asked.warm_up:
        few = asked.compose(_WARM_UP_ROUNDS, f"problem.n_agents={max(2, experiment.settings.algorithm.P)}")
        timed(asked, few, lambda done, total: None)
    program_mb, begin = peak_mb(), time.perf_counter()
    _prepare(experiment)
    start += time.perf_counter() - begin
    runs, shape, end = list[dict[str, float]](), None, time.monotonic() + asked.seconds
    while not runs or (len(runs) < asked.repeats and time.monotonic() < end):
        seconds, shape = timed(asked, experiment, on_step)
        runs.append(seconds)
    assert shape is not None
    more = {} if asked.device == "cpu" else _on_device(asked)
    return {
        "runs": runs,
        "start": start,
        "shape": asdict(shape),
        "own_draw": _method(experiment),
        "more": more,
        "start_mb": program_mb,
    }


def _method(experiment: FederatedExperiment) -> str:
    return experiment.settings.algorithm.own_draw.method


def _prepare(experiment: FederatedExperiment) -> None:
    """Compute what a problem and its plan keep: it is no part of a round."""
    experiment.problem.reference  # noqa: B018
    experiment.plan  # noqa: B018


def _dpfbo(task: RunTask, experiment: FederatedExperiment, on_step: OnStep) -> Timed:
    """Run the library, its ledger in memory."""
    server = experiment.server(Ledger(None))
    with _Stopwatch(task.device) as watch:
        result = _ran(task, experiment, server, on_step)
    return watch.parts(result.seconds), shape_of(experiment, result.rounds)


def _ran(task: RunTask, experiment: FederatedExperiment, server: Any, on_step: OnStep) -> FederatedResult:
    T = experiment.rounds
    ids = torch.arange(experiment.problem.n_agents, device=task.device)
    shard = Shard(experiment.problem, experiment.agents, ids, experiment.settings.executor.threads)
    population = LocalPopulation(shard, experiment.study.algorithm.aggregates)
    return federation.run(
        population, server, T, lambda done: on_step(done.agents.round, T),
        broadcasts=experiment.settings.algorithm.broadcasts,
    )  # fmt: skip


def _plain(task: RunTask, experiment: FederatedExperiment, on_step: OnStep) -> Timed:
    settings, T = experiment.settings, experiment.rounds
    with _Stopwatch() as watch:
        result = plain_loop.run(experiment.problem, settings, T, settings.seed, lambda t: on_step(t, T))
    return watch.parts(result.clock.seconds), shape_of(experiment, ())


def _botorch(task: RunTask, experiment: FederatedExperiment, on_step: OnStep) -> Timed:
    """BoTorch's fits and draws for the histories and the agents' own queries of a run of dpfbo, which is not timed."""
    from runners.bench import botorch_loop

    result = _ran(task, experiment, experiment.server(Ledger(None)), lambda done, total: None)
    with _Stopwatch() as watch:
        clock = botorch_loop.run(experiment, result.rounds, on_step)
    return watch.parts(clock.seconds), shape_of(experiment, result.rounds)


def _on_device(task: RunTask) -> dict[str, float]:
    """The peak memory of the accelerator, and copies to and from it in a round of a further, shorter run."""
    from torch.profiler import ProfilerActivity, profile

    peak = torch.cuda.max_memory_allocated() / 1e6
    experiment = task.compose(_WARM_UP_ROUNDS)
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        _ran(task, experiment, experiment.server(Ledger(None)), lambda done, total: None)
        torch.cuda.synchronize()
    names = [event.name for event in watched.events()]
    rounds = _WARM_UP_ROUNDS + 1
    to, back = (sum(way in name for name in names) / rounds for way in ("Memcpy HtoD", "Memcpy DtoH"))
    return {"device memory, MB": peak, "copies to the device a round": to, "copies back a round": back}


class _Stopwatch:
    """Wall and CPU seconds of a block; on an accelerator its work is waited for."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device

    def __enter__(self) -> "_Stopwatch":
        self._wait()
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self._wait()
        self.wall, self.cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu

    def _wait(self) -> None:
        if self._device != "cpu":
            torch.cuda.synchronize()

    def parts(self, phases: dict[str, float]) -> dict[str, float]:
        """Seconds by phase, and of everything else, together, and of the CPU."""
        named = {**dict.fromkeys(PHASES, 0.0), **phases}
        return {**named, "other": self.wall - sum(phases.values()), "total": self.wall, "cpu": self.cpu}


def shape_of(experiment: FederatedExperiment, rounds: Sequence[RoundRecord]) -> RunShape:
    """The sizes of a run with these records. Without records no agent counts for own draws or acquisition."""
    a, agents, domain, T = (
        experiment.settings.algorithm,
        experiment.agents,
        experiment.problem.domain,
        experiment.rounds,
    )
    prior = agents.prior
    models = 0 if prior is None else len(prior.residuals) + prior.tries("features") + prior.tries("own_gp")

    def share(name: str) -> list[float]:
        index = Source[name]
        found = [float((record.source == index).double().mean()) for record in rounds]
        return found or [0.0] * (T + 1)

    q = getattr(experiment.mechanism, "sampling_probability", 1.0) if experiment.private else 1.0
    return RunShape(
        N=experiment.problem.n_agents, T=T, n_init=agents.n_init, D=embedded_dimension(domain),
        M=agents.features.frequencies.shape[1], P=a.P, q=q, G=len(domain.points) if isinstance(domain, Grid) else 0,
        method=agents.own_draw.method, F=agents.own_draw.n_features, lengthscale=agents.own_gp.lengthscale,
        fit=agents.own_gp.fit != "given", every=agents.own_gp.every, candidates=agents.acquisition.n_candidates,
        starts=agents.acquisition.n_starts, models=int(models),
        blocks=0 if prior is None else len(prior.lengthscales), aggregates=a.server is not None,
        broadcasts=T if a.broadcasts is None else a.broadcasts, own=share("own"), server=share("server"),
    )  # fmt: skip


def measurement(
    reply: Reply, panel: str, what: str, size: dict[str, float], rates: OperationRates | None = None
) -> Measurement:
    """The measurement of a run in milliseconds for each agent and round. rates: None for one without floors."""
    shape = RunShape(**reply.result["shape"])
    to_ms, runs = 1e3 / (shape.N * shape.T), reply.result["runs"]

    def spread(name: str) -> Spread:
        return Spread.of(to_ms * seconds.get(name, 0.0) for seconds in runs)

    floors = {} if rates is None else of_run(shape, rates, 1e3)
    names = dict.fromkeys(name for seconds in runs for name in seconds if name not in ("total", "cpu"))
    more: dict[str, float | str] = {
        "whole run, s": median(seconds["total"] for seconds in runs),
        "start, s": reply.result["start"],
        "own draw": reply.result["own_draw"],
        FLOOR_MB: reply.start_mb + memory_mb(shape),
    }
    return Measurement(
        panel, what, {"N": shape.N, "T": shape.T, "M": shape.M, **size},
        Spread.of(to_ms * (seconds["total"] - seconds["objective"]) for seconds in runs),
        {name: spread(name) for name in names}, spread("cpu"), reply.start_mb, reply.peak_mb, floors,
        {**more, **reply.result.get("more", {})},
    )  # fmt: skip
