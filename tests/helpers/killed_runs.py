"""Runs whose actors or drivers are killed, and checks of their records and ledgers."""

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from dpfbo.checkpoint import Checkpoint
from dpfbo.federated.broadcast import RegionVectors, SharedPrior
from dpfbo.privacy.ledger import digest
from runners.compose.composition import Composition
from runners.identity.setting import RunIdentity
from runners.recorded_run import run_configuration
from tests.helpers.compose import compose, setting_hash
from tests.helpers.small_runs import BRANIN, QUIET, Records, charged
from tests.soak.outcome import Outcome

T = 20
RUN = [*BRANIN, f"rounds={T}"]  # overrides of the killed runs
RAY = ["executor=ray", "executor.agents_per_actor=3"]
RAY_OF_ITS_OWN = [*RAY, "executor.address=local", "+executor.init.num_cpus=4"]
SHARDS = ("agents 0..2", "agents 3..5")
LIMIT = 300.0  # seconds that a process has to end
RAYS_OWN = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")  # run none of our code, and need 40 s to miss their node
MARK = "DPFBO_KILL_WORLD"  # environment variable that all processes of one killed run inherit


def processes(mark: str) -> dict[int, str]:
    """The titles of all processes of a killed run, by pid."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
    return {pid: title for pid, title in found.items() if title}  # a zombie has no title


def until(condition: Callable[[], object], poll: float = 2e-4) -> None:
    """Wait for the condition. Raises TimeoutError after LIMIT."""
    give_up = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError("waited in vain")
        time.sleep(poll)


@contextmanager
def ray_session() -> Iterator[str]:
    """Start a Ray for this process; yields the mark of its processes."""
    import ray

    mark = uuid.uuid4().hex
    with mock.patch.dict(os.environ, {MARK: mark, "RAY_USAGE_STATS_ENABLED": "0"}):
        ray.init(address="local", include_dashboard=False, num_cpus=4, log_to_driver=False, logging_level=logging.ERROR)
        try:
            yield mark
        finally:
            ray.shutdown()


@dataclass(frozen=True)
class Kill:
    """The kill of one actor.

    after: last finished round. moment: seconds later, or `charge`: at the next entry of the ledger. again: kill its
    successor too, while it starts.
    """

    actor: str
    after: int
    moment: float | str
    again: bool = False


def actor_kills(kind: str, how_many: int, seed: int) -> list[Kill]:
    """Kills at random rounds and moments. kind: agent or server; every other server kill is right after a charge."""
    dice = random.Random(f"{kind} {seed}")
    kills: list[Kill] = []
    rounds = iter(dice.sample(range(T - 1), how_many))
    while sum(1 + kill.again for kill in kills) < how_many:
        actor = "the server" if kind == "server" else dice.choice(SHARDS)
        moment = "charge" if kind == "server" and len(kills) % 2 == 0 else dice.uniform(0.0, 0.15)
        kills.append(Kill(actor, next(rounds), moment, again=how_many > 3 and len(kills) == 1))
    return kills


class ActorKiller:
    """Kills actors of the run in this process, and notes the broadcasts to its agents."""

    def __init__(self, kills: Sequence[Kill], mark: str, folder: Path) -> None:
        self.kills, self.mark, self.folder = kills, mark, folder
        self.landed, self.late, self._last = 0, 0, -1  # late: of these, those that the end of the run may not notice
        self._ended = False
        self.observed: set[tuple[int, str]] = set()
        self.errors: list[BaseException] = []
        self._deployment: Any = None
        self._killed: set[int] = set()
        self._one_at_a_time = threading.Lock()
        self._threads: list[threading.Thread] = []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        from runners.executor.ray.federated import RayFederation
        from runners.executor.ray.outsourced import RayModeler

        places, step = {kind: kind.place for kind in (RayFederation, RayModeler)}, RayFederation.do_round

        def watched_place(deployment: RayFederation | RayModeler) -> None:
            self._deployment = deployment
            places[type(deployment)](deployment)

        def watched_step(deployment: RayFederation, t: int, broadcast: Any, server: Any) -> Any:
            if isinstance(broadcast, RegionVectors | SharedPrior):
                self.observed.add((t - 1, digest(broadcast.values)))
            return step(deployment, t, broadcast, server)

        with (
            mock.patch.object(RayFederation, "place", watched_place),
            mock.patch.object(RayModeler, "place", watched_place),
            mock.patch.object(RayFederation, "do_round", watched_step),
        ):
            yield
        self._ended = True
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def on_round(self, done: Any) -> None:
        self._last = done.agents.round
        for kill in self.kills:
            if kill.after == done.agents.round:
                size = os.stat(self.folder / "ledger.jsonl").st_size
                self._threads.append(threading.Thread(target=self._kill, args=(kill, size), daemon=True))
                self._threads[-1].start()

    def _kill(self, kill: Kill, size: int) -> None:
        try:
            if isinstance(kill.moment, str):
                until(lambda: os.stat(self.folder / "ledger.jsonl").st_size > size)
            else:
                time.sleep(kill.moment)
            pid = self._kill_now(kill.actor)
            if kill.again and (successor := self._successor(kill.actor, pid)):
                self.landed += self._end(successor)
        except BaseException as error:
            self.errors.append(error)

    def _kill_now(self, actor: str) -> int:
        """Kill the process of an actor, or its next process if an earlier kill has ended it already."""
        killed: list[int] = []

        def lives() -> bool:
            pid = self._deployment.placements[actor].pid
            if self._end(pid):
                killed.append(pid)
            return bool(killed)

        until(lambda: lives() or self._ended, poll=1e-3)  # a killed actor that is not needed has no next process
        self.landed += bool(killed)
        self.late += bool(killed) and self._last >= T - 1
        return killed[0] if killed else 0

    def _end(self, pid: int) -> bool:
        """Kill a process; False if it is gone, or another thread has killed it: two signals are one death."""
        with self._one_at_a_time, suppress(ProcessLookupError):
            if pid not in self._killed:
                os.kill(pid, signal.SIGKILL)
                self._killed.add(pid)
                return True
        return False

    def _successor(self, actor: str, killed: int) -> int:
        """The process in which a killed actor is being started again; 0 if the run ended without one."""
        kind = "ServerActor" if actor == "the server" else "AgentActor"
        starting: list[int] = []

        def born() -> bool:
            titles = processes(self.mark)
            starting[:] = [p for p, t in titles.items() if t.startswith(f"ray::{kind}.start") and p != killed]
            return bool(starting)

        until(lambda: born() or self._ended, poll=1e-3)
        return starting[0] if starting else 0


def kill_actors(
    kind: str,
    kills: Sequence[Kill],
    folder: Path,
    mark: str,
    expected: Records | None,
    *settings: str,
    base: Sequence[str] = (*RUN, *RAY),
) -> Outcome:
    """Kill actors of a run on the Ray of this process. expected: None for fresh noise. base: the first settings."""
    outcome, begin = Outcome(kind), time.monotonic()
    cfg = compose(*base, *settings, *QUIET, f"results_dir={folder}")
    killer = ActorKiller(kills, mark, folder / "single" / setting_hash(cfg) / str(cfg.seed))
    with killer.at_work():
        summary, path = run_configuration(cfg, killer.on_round)
    restarts = summary["executor"]["restarts"]
    outcome.kills = restarts
    if expected is None:
        outcome.judge_fresh(path, killer.observed, T)
    else:
        outcome.judge(path, expected)
        paid = set(charged(path))
        if base == (*RUN, *RAY):  # agents are told each broadcast once, in the round after it
            outcome.ledger &= killer.observed == paid
        outcome.ledger &= {d for _, d in killer.observed} <= {d for _, d in paid}
    if not killer.landed - killer.late <= restarts <= killer.landed:
        outcome.records = False
        excused = summary["executor"].get("preemptions", 0)
        outcome.notes.append(
            f"{restarts} restarts and {excused} preemptions after {killer.landed} kills, {killer.late} at the end"
        )
    outcome.seconds = time.monotonic() - begin
    return outcome


class Process(Protocol):
    """A process that runs an experiment."""

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


def command(given: Sequence[str], stderr: Path, mark: str) -> Process:
    """Start the command of a run."""
    environment = {**os.environ, MARK: mark, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    with open(stderr, "wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "runners.run", *given],
            env=environment, stdout=subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip


@dataclass(frozen=True)
class Moment:
    """The moment of a driver's kill.

    `start`: `delay` seconds after its start, or when the ledger has a round, if that is earlier; `charge` and `round`:
    `delay` seconds after the ledger or the checkpoint has round t.
    """

    at: str
    t: int = 0
    delay: float = 0.0

    def wait(self, process: Process, folder: Path) -> None:
        if self.at == "start":  # a fast machine would be done with the run
            end = time.monotonic() + self.delay
            ledger = folder / "ledger.jsonl"
            until(lambda: process.poll() is not None or time.monotonic() >= end or _charges(ledger) > 0)
            return
        if self.at == "charge":
            until(lambda: process.poll() is not None or _charges(folder / "ledger.jsonl") > self.t)
        elif self.at == "round":
            done = folder / "checkpoint" / f"round-{self.t:05d}.npz"
            until(lambda: process.poll() is not None or done.exists())
        time.sleep(self.delay)


def driver_moments(how_many: int, seed: int, start: float, finish: bool = True) -> list[Moment]:
    """A moment within `start` seconds, one while the run ends if `finish`, and the others in the order of rounds."""
    dice = random.Random(f"driver {seed}")
    finish = finish and how_many > 1
    rounds = sorted(dice.sample(range(T - 2), how_many - 1 - finish))
    middle = [
        Moment("charge", t) if i % 2 else Moment("round", t, dice.uniform(0.0, 0.05)) for i, t in enumerate(rounds)
    ]
    end = [Moment("round", T, dice.uniform(0.0, 0.02))] if finish else []
    return [Moment("start", delay=dice.uniform(0.0, start)), *middle, *end]


def kill_drivers(
    kind: str,
    moments: Sequence[Moment],
    folder: Path,
    expected: Records | None,
    *settings: str,
    patient: bool = False,
    base: Sequence[str] = RUN,
    broadcasts: int = T,
    start: Callable[[Sequence[str], Path, str], Process] = command,
) -> Outcome:
    """Kill a run at each moment and start it again at once, until it ends by itself.

    Afterwards all of its processes, found by their mark, must end, and the ledger must not change. patient: wait for
    `RAYS_OWN`, too. base: the first settings. broadcasts: of an undisturbed run.
    """
    outcome, begin, mark = Outcome(kind), time.monotonic(), uuid.uuid4().hex
    given = [*base, *settings, *QUIET, f"results_dir={folder}"]
    cfg = compose(*given)
    composition = Composition.of(cfg)
    path = RunIdentity.of(composition.given, composition.settings).labelled_path
    observed: set[tuple[int, str]] = set()
    again = False  # True if a finished round, or run, was repeated
    for moment in [*moments, None]:
        process = start(given, folder / "stderr", mark)
        try:
            if moment is not None:
                moment.wait(process, path)
                process.kill()
            code = process.wait(LIMIT)
        finally:
            process.kill()
            process.wait()
        said = (folder / "stderr").read_text(errors="replace")
        outcome.tracebacks += said.count("Traceback (most recent call last)")
        if code == -signal.SIGKILL:
            outcome.kills += 1
        elif code != 0:
            outcome.notes.append(f"exit code {code}: {said[-500:]}")
            return outcome
        if expected is None and moment is not None and (path / "summary.json").exists():
            ended = (path / "ledger.jsonl").read_bytes()  # killed as it ended: the next start only tidies
            last = start(given, folder / "stderr", mark)
            try:
                if last.wait(LIMIT) != 0 or (path / "ledger.jsonl").read_bytes() != ended:
                    again = True
                    outcome.notes.append("a finished run released once more")
            finally:
                last.kill()
                last.wait()
            break
        seen = {
            (r.server.round, digest(r.broadcast.values)) for r in Checkpoint(path / "checkpoint").rounds() if r.server
        }
        again |= not observed <= seen and moment is not None
        observed |= seen
    left = (path / "ledger.jsonl").read_bytes()
    if expected is None:
        observed |= {(t, d) for t, d in charged(path) if t >= max((t for t, _ in observed), default=0)}
        outcome.judge_fresh(path, observed, broadcasts)
        outcome.ledger &= not again
    else:
        outcome.judge(path, expected)
    awaited = () if patient else RAYS_OWN
    until(lambda: all(title.startswith(awaited) for title in processes(mark).values()), poll=0.2)
    if (path / "ledger.jsonl").read_bytes() != left:
        outcome.ledger = False
        outcome.notes.append("an orphan wrote to the ledger")
    outcome.seconds = time.monotonic() - begin
    return outcome


def _charges(path: Path) -> int:
    try:
        return path.read_bytes().count(b'"digest"')
    except FileNotFoundError:
        return 0
