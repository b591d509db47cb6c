"""Federated runs of dpfbo or of `plain_loop`, timed by phase."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from dpfbo.federated import federation
from dpfbo.federated.federation import FederatedResult, LocalPopulation
from dpfbo.federated.population.shard import Shard
from dpfbo.formats.words import Source
from dpfbo.privacy.ledger import Ledger
from dpfbo.records import RoundRecord
from dpfbo.space.domain import Grid, embedded_dimension
from runners.bench import plain_loop
from runners.bench.floors import RunShape, of_run
from runners.bench.fresh_process import Floors, TimedRun
from runners.compose.composition import build, federated
from runners.compose.configuration import composed
from runners.compose.federated import FederatedExperiment
from runners.executor.deployment import device

_WARM_UP_ROUNDS = 3


@dataclass(frozen=True)
class RunTask:
    """A federated run whose duration is measured. plain: True to run `plain_loop` instead of dpfbo."""

    problem: str
    algorithm: str
    overrides: tuple[str, ...] = ()
    plain: bool = False

    def compose(self, *more: str) -> FederatedExperiment:
        """Compose the experiment. Raises ValueError for bad settings, and MissingData if a data file is missing."""
        given = [f"problem={self.problem}", f"algorithm={self.algorithm}", *self.overrides, *more]
        return federated(build(composed(given)))


def prepare(task: RunTask) -> TimedRun:
    """Make a short warm-up run, compute all cached values, and return a function that makes the timed run."""
    experiment = task.compose()
    few = max(2, experiment.settings.algorithm.P)
    _timed(task.compose(f"rounds={_WARM_UP_ROUNDS}", f"problem.n_agents={few}"), task.plain)
    experiment.problem.reference  # noqa: B018
    experiment.plan  # noqa: B018
    return partial(_timed, experiment, task.plain)


def _timed(experiment: FederatedExperiment, plain: bool) -> tuple[Mapping[str, float], Floors]:
    if plain:
        settings = experiment.settings
        timing = plain_loop.run(experiment.problem, settings, experiment.rounds, settings.seed)[1]
        return timing.seconds, lambda rates: {}
    result = library_run(experiment)
    return result.seconds, partial(of_run, shape_of(experiment, result.rounds))


def library_run(experiment: FederatedExperiment) -> FederatedResult:
    """Run the experiment with dpfbo, with the ledger in memory."""
    executor = experiment.settings.executor
    ids = torch.arange(experiment.problem.n_agents, device=device(executor.device, given_gpu=False))
    shard = Shard(experiment.problem, experiment.agents, ids, executor.threads)
    population = LocalPopulation(shard, experiment.study.algorithm.aggregates)
    broadcasts = experiment.settings.algorithm.broadcasts
    return federation.run(population, experiment.server(Ledger(None)), experiment.rounds, broadcasts=broadcasts)


def shape_of(experiment: FederatedExperiment, rounds: Sequence[RoundRecord]) -> RunShape:
    """Return the sizes of the experiment's run.

    rounds: the run's records; if empty, the fields `own` and `server` are 0.
    """
    a, agents, T = experiment.settings.algorithm, experiment.agents, experiment.rounds
    domain, own, averaged, prior = experiment.problem.domain, agents.own_gp, agents.averaged_gp, a.has_prior
    kernels = 0 if averaged is None else len(averaged.lengthscales) * len(averaged.noises) * (1 + prior)
    shares = {
        name: [float((record.source == Source[name]).double().mean()) for record in rounds] or [0.0] * (T + 1)
        for name in ("own", "server")
    }
    return RunShape(
        N=experiment.problem.n_agents, T=T, n_init=agents.n_init, D=embedded_dimension(domain),
        M=agents.features.size, P=a.P,
        q=getattr(experiment.mechanism, "sampling_probability", 1.0) if experiment.private else 1.0,
        G=len(domain.points) if isinstance(domain, Grid) else 0, method=agents.own_draw.method,
        F=agents.own_draw.n_features, lengthscale=own.lengthscale, fit_every=None if own.fit == "given" else own.every,
        candidates=agents.acquisition.n_candidates, starts=agents.acquisition.n_starts, kernels=kernels,
        lengthscales=len(averaged.lengthscales) if averaged is not None and prior else 0,
        broadcasts=0 if a.server is None else T if a.broadcasts is None else a.broadcasts, **shares,
    )  # fmt: skip
