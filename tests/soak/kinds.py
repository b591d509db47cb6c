"""The kinds of kills in a soak, and the share of each: cheap ones get more."""

import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dpfbo.privacy.ledger import Ledger
from tests.helpers import studies
from tests.helpers.killed_runs import (
    RAY,
    RAY_OF_ITS_OWN,
    RUN,
    SHARDS,
    Kill,
    Moment,
    Process,
    T,
    actor_kills,
    command,
    driver_moments,
    kill_actors,
    kill_drivers,
)
from tests.helpers.small_runs import BRANIN, Records, undisturbed
from tests.soak import sweeps
from tests.soak.forked import forked
from tests.soak.outcome import Outcome

MOST = 5  # kills in one run
OS, TREE = "privacy.rng=os", "executor.aggregation=tree"
PRIOR = [*BRANIN, f"rounds={T}", "algorithm=dp_prior", "algorithm.M=24"]
TABLE = ["problem=grid_gp", "problem.side_points=12", f"rounds={T}", "n_init=3", "privacy.epsilon=3"]
PROJECTED, NOISY = [*TABLE, "algorithm=po_gp_ucb"], [*TABLE, "algorithm=gaussian_gp_ucb"]


class Place:
    """Folders, the mark of this process's Ray, and the records of undisturbed runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, ""
        self._expected: dict[tuple[str, ...], Records] = {}

    def fresh(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    def expected(self, *settings: str) -> Records:
        if settings not in self._expected:
            self._expected[settings] = undisturbed(self.fresh(), *settings)
        return self._expected[settings]


World = Callable[[Place, int, int], Outcome]  # place, kills, seed


@dataclass(frozen=True)
class Kind:
    """A kind of kill.

    kills: of a thousand. seconds: a kill on two cores, its part of the run included, within a factor of two. most:
    kills in one run. ray: True if it needs a Ray of this process.
    """

    name: str
    kills: int
    seconds: float
    world: World
    most: int = MOST
    ray: bool = False

    def run(self, place: Place, kills: int, seed: int) -> Iterator[Outcome]:
        """Run until so many kills landed: a run may end before its last kill.

        The last outcome is a failure if too few did after twice as many runs as planned.
        """
        landed, runs = 0, 2 * -(-kills // self.most) + 3
        for i in range(runs):
            n = min(self.most, kills - landed)
            begin = time.monotonic()
            try:
                outcome = self.world(place, n, seed + 1000 * i)
            except Exception as error:
                outcome = Outcome(self.name, notes=[f"{type(error).__name__}: {error}"], tracebacks=1)
            outcome.kind, outcome.seconds = self.name, time.monotonic() - begin
            landed += outcome.kills
            if landed < kills and i == runs - 1:
                outcome.records = False
                outcome.notes.append(f"{landed} of {kills} planned kills landed in {runs} runs")
            yield outcome
            if landed >= kills:
                return


def _drivers(
    place: Place, kills: int, seed: int, *settings: str, window: float, base: Sequence[str] = RUN, broadcasts: int = T,
    start: Callable[[Sequence[str], Path, str], Process] = command, patient: bool = False,
) -> Outcome:  # fmt: skip
    """A run whose process is killed. window: seconds of the first kill after the start. broadcasts: of the run."""
    fresh_noise = OS in settings
    moments = [_possible(m, broadcasts) for m in driver_moments(kills, seed, window, not fresh_noise)]
    expected = None if fresh_noise else place.expected(*base)
    return kill_drivers(
        "", moments, place.fresh(), expected, *settings, patient=patient, base=base, broadcasts=broadcasts, start=start
    )


def _possible(moment: Moment, broadcasts: int) -> Moment:
    """The same moment, after a round where there is no charge to wait for."""
    return replace(moment, at="round") if moment.at == "charge" and moment.t >= broadcasts else moment


_command = partial(_drivers, window=5.0)
_fork = partial(_drivers, window=0.15, start=forked)


def _actors(kind: str, place: Place, kills: int, seed: int, *settings: str) -> Outcome:
    """A run on Ray whose agent or server actors are killed. kind: agent, server or both."""
    numbers = {"agent": (kills, 0), "server": (0, kills), "both": (kills - kills // 2, kills // 2)}[kind]
    planned = [k for who, n in zip(("agent", "server"), numbers, strict=True) for k in actor_kills(who, n, seed) if n]
    alone = (*RUN, *RAY, *settings) if settings else RUN
    expected = None if OS in settings else place.expected(*alone)
    return kill_actors("", planned, place.fresh(), place.mark, expected, *settings)


def _ray(
    place: Place, kills: int, seed: int, base: Sequence[str], actors: Sequence[str], alone: Sequence[str]
) -> Outcome:
    """A run of another kind on Ray; its records must be those without Ray. alone: its settings without Ray."""
    dice = random.Random(f"actors {seed}")
    rounds = dice.sample(range(T - 1), kills)
    planned = [Kill(dice.choice(actors), t, dice.uniform(0.0, 0.1)) for t in rounds]
    return kill_actors("", planned, place.fresh(), place.mark, place.expected(*alone), base=(*base,))


def _study(algorithm: str, place: Place, kills: int, seed: int) -> Outcome:
    """Studies of two sites and a server by files, until so many of their calls were killed."""
    outcome, killed = Outcome("", records=True, ledger=True, runs=0), Counter[str]()
    expected, result = studies.simulated(algorithm)
    theirs = [(c.round, c.digest) for c in result.ledger.charges]
    for i in itertools.count():
        here = place.fresh()
        studies.described(here, "--algorithm", algorithm, "--rng", "seeded")
        killer = studies.Killer(here, seed + i)
        outcome.records &= studies.played(here, killer) == expected
        paid = [(c.round, c.digest) for c in Ledger(here / "server" / "ledger.jsonl").charges]
        outcome.ledger &= paid == theirs
        outcome.lost += len(set(theirs) - set(paid))
        outcome.double += len(paid) - len(set(paid))
        outcome.tracebacks += killer.errors.read_text().count("Traceback (most recent call last)")
        outcome.runs += 1
        killed += killer.kills
        if killed.total() >= kills:
            break
    outcome.kills = killed.total()
    return outcome


def _many_runs(place: Place, runs: int, seed: int) -> Outcome:
    """Undisturbed runs, one after another, in this process: what it keeps of each would add up."""
    expected = place.expected(*RUN)
    same = [undisturbed(place.fresh(), *RUN) == expected for _ in range(runs)]
    return Outcome("", records=all(same), ledger=all(same), runs=runs)


MANY_RUNS = Kind("one process, many runs", 0, 0.0, _many_runs)
# forks come first: a process that uses Ray should not be forked
KINDS = (
    Kind("study, dp_fts_de", 50, 0.2, partial(_study, "dp_fts_de"), most=50),
    Kind("study, dp_prior", 50, 0.2, partial(_study, "dp_prior"), most=50),
    Kind("forked driver", 100, 0.2, _fork),
    Kind("forked driver, rng=os", 80, 0.2, lambda *a: _fork(*a, OS)),
    Kind("forked prior", 50, 0.2, partial(_fork, base=PRIOR, broadcasts=1)),
    Kind("forked prior, rng=os", 50, 0.2, lambda *a: _fork(*a, OS, base=PRIOR, broadcasts=1)),
    Kind("forked curator", 40, 0.1, partial(_fork, base=PROJECTED, broadcasts=1)),
    Kind("forked curator, rng=os", 40, 0.1, lambda *a: _fork(*a, OS, base=NOISY, broadcasts=1)),
    Kind("local driver", 80, 3.0, _command),
    Kind("local driver, rng=os", 50, 4.0, lambda *a: _command(*a, OS)),
    Kind("private prior", 40, 3.0, partial(_command, base=PRIOR, broadcasts=1)),
    Kind("outsourced", 40, 3.0, partial(_command, base=PROJECTED, broadcasts=1)),
    Kind("agent actor", 50, 3.0, partial(_actors, "agent"), ray=True),
    Kind("server actor", 50, 5.0, partial(_actors, "server"), ray=True),
    Kind("actors, rng=os", 40, 3.6, lambda *a: _actors("both", *a, OS), ray=True),
    Kind("actors, tree", 40, 3.6, lambda *a: _actors("both", *a, TREE), ray=True),
    Kind(
        "private prior on Ray", 40, 3.0,
        partial(_ray, base=(*PRIOR, *RAY), actors=("the server", *SHARDS), alone=PRIOR), ray=True,
    ),
    Kind(
        "outsourced on Ray", 40, 3.0,
        partial(_ray, base=(*NOISY, "executor=ray"), actors=("the modeler",), alone=NOISY), ray=True,
    ),
    Kind(
        "driver on Ray", 30, 17.0,
        lambda p, n, s: _drivers(p, n, s, *RAY_OF_ITS_OWN, window=15.0, patient=True),
    ),
    Kind("nodes of a sweep", 20, 8.0, lambda p, n, s: sweeps.nodes(p.fresh(), n, s), most=10),
    Kind("trials of a sweep", 20, 8.0, lambda p, n, s: sweeps.trials(p.fresh(), n, s), most=10),
)  # fmt: skip


def shares(kills: int) -> dict[str, int]:
    """The kills of each kind, at least one; a thousand in all give those of the table."""
    return {kind.name: max(1, round(kind.kills * kills / 1000)) for kind in KINDS}
