"""The folder of a site: its keys, the operator's files, the objective, and the agent's state."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from dpfbo.formats.files import locked_file, make_folder
from dpfbo.formats.journal import StateError, broadcast_file, read_events
from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.ledger import Ledger
from dpfbo.protocol.agent import Agent
from runners.deploy.keys import PUBLIC, PublicKeys
from runners.deploy.project import OBJECTIVE, Shared
from runners.study import read_json

_PATIENCE = 120.0  # seconds to wait for another process or thread that uses the agent's folder
ATTEMPTS = "attempts.json"
EVALUATED, WAITS, DONE = "evaluated", "waits for the server", "done"


@dataclass(frozen=True)
class SiteFolder:
    """The private folder of a site that is in the roster. agent: the site's number."""

    folder: Path
    shared: Shared
    agent: int

    @staticmethod
    def read(folder: Path) -> SiteFolder:
        """Read the site in a folder. Raises StateError if files are missing, or the roster lacks this site."""
        folder = folder.absolute()
        keys, shared = read_public(folder), Shared.read(folder)
        agent = shared.roster.number_of(keys.identity)
        if agent is None:
            raise StateError(
                f"{folder}/roster.json lacks this site (fingerprint {keys.fingerprint}): ask the operator to add it, "
                "and to send for_sites again"
            )
        return SiteFolder(folder, shared, agent)

    @property
    def state(self) -> Path:
        """The folder of the agent's state."""
        return self.folder / "agent"

    @property
    def attempts(self) -> int:
        """The number of attempts that the site allows per secure sum. Raises StateError if attempts.json is damaged."""
        path = self.folder / ATTEMPTS
        if not path.exists():
            return 1
        count = read_json(path)
        if type(count) is not int or count < 1:
            raise StateError(f"{path} must have a number of at least 1, got {count!r}")
        return count

    def alone(self) -> AbstractContextManager[object]:
        """Lock the agent's state within the block; other threads and processes wait."""
        return self._locked("lock", _PATIENCE)

    @contextmanager
    def opened(self) -> Iterator[Agent]:
        """Load the agent, and lock its state until the block ends. Waits if another thread or process has the lock."""
        with self.alone(), closing(self._agent()) as agent:
            yield agent

    def running(self) -> AbstractContextManager[object]:
        """Lock the site for this process until the block ends. Raises StateError if another process runs the site."""
        return self._locked("running", 0.0)

    def evaluate_next(self, evaluate: Callable[[dict[str, Any]], float | None]) -> str:
        """Evaluate one configuration and return EVALUATED; if there is none to evaluate now, return WAITS or DONE."""
        with self.opened() as agent:
            if not agent.pending:
                if agent.message_due or agent.awaited is not None:
                    return WAITS
                if agent.asked >= agent.study.n_init + agent.study.rounds:
                    return DONE
                agent.ask()
            number, configuration = min(agent.pending.items())
        value = evaluate(configuration)  # type: ignore[arg-type]
        with self.opened() as agent:
            agent.tell(number, value, failed=value is None)
        return EVALUATED

    def objective(self) -> Callable[[dict[str, Any]], float | None]:
        """Load the function `evaluate` from the site's `objective.py`, which may import files of the same folder.

        Whatever `evaluate` prints goes to standard error. The returned function raises StateError if `evaluate` fails.
        Loading raises StateError if the file fails or does not define `evaluate`.
        """
        path = self.folder / OBJECTIVE
        sys.path.insert(0, str(self.folder))
        try:
            module = sys.modules["objective"] = _module(path)  # so that child processes can import it by name
        except Exception as error:
            raise StateError(f"{path} cannot be loaded: {_last_line(error)}") from error
        found = getattr(module, "evaluate", None)
        if not callable(found):
            raise StateError(f"{path} must define evaluate(configuration), got {found!r}")

        def evaluate(configuration: dict[str, Any]) -> float | None:
            try:
                with redirect_stdout(sys.stderr):
                    value = found(configuration)
                return None if value is None else float(value)
            except Exception as error:
                traceback.print_exc()
                raise StateError(f"evaluate({configuration}) in {path} raised {_last_line(error)}") from error

        return evaluate

    def status(self) -> dict[str, Any]:
        """Return the state of the site, without any value of its objective."""
        with self.opened() as agent:
            planned = agent.study.n_init + agent.study.rounds
            waits = agent.message_due or agent.awaited is not None
            done = agent.asked >= planned and not agent.pending
            phase = WAITS if waits else DONE if done else "evaluates"
            evaluated = agent.asked - len(agent.pending)
            return {
                "agent": self.agent, "study": agent.study.digest, "phase": phase, "round": agent.round,
                "evaluations": evaluated, "planned": planned, "privacy": agent.study.promise,
            }  # fmt: skip

    def result(self) -> dict[str, Any]:
        """Return the best configuration, the epsilon of all sent messages, and their ledger."""
        with self.opened() as agent:
            best, study = agent.best(), agent.study
            if study.trust == "nobody":
                charges = Ledger(self.state / "ledger.jsonl").charges
                sent = [charge.event() for charge in charges]
                ledger = [asdict(charge) for charge in charges]
            else:
                events = read_events(self.state / "agent.jsonl")
                ledger = [self._entry(event["round"]) for event in events if event["event"] == "message"]
                sent = [study.events[entry["round"]] for entry in ledger] if study.algorithm.private else []
        spent = study.plan.epsilon(sent) if sent else study.plan.epsilon_of_nothing
        return {
            "configuration": None if best is None else best[0], "value": None if best is None else best[1],
            "epsilon": None if spent is None else finite_or_none(spent), "delta": study.plan.delta,
            "privacy": study.promise, "ledger": ledger,
        }  # fmt: skip

    def _locked(self, name: str, seconds: float) -> BinaryIO:
        make_folder(self.state, private=True)
        try:
            return locked_file(self.state / name, seconds)
        except BlockingIOError as error:
            raise StateError(f"another process runs the site in {self.folder}: wait for it, or stop it") from error

    def _agent(self) -> Agent:
        return Agent(self.shared.study, self.agent, self.state, not self.shared.minimize)

    def _entry(self, t: int) -> dict[str, Any]:
        files = {"message": f"message-{t:05d}.bin", "broadcast": broadcast_file(t)}
        paths = {name: self.state / file for name, file in files.items()}
        digests = {
            name: hashlib.sha256(p.read_bytes()).hexdigest() if p.exists() else None for name, p in paths.items()
        }
        return {"round": t, **digests}


def read_public(folder: Path) -> PublicKeys:
    """Read the public keys of a site. Raises StateError if it has none."""
    path = folder / PUBLIC
    if not path.exists():
        raise StateError(f"{folder} is not a site's folder: python -m runners.deploy site-key makes one")
    return PublicKeys.of(read_json(path), path)


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("objective", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _last_line(error: Exception) -> str:
    return traceback.format_exception_only(error)[-1].strip()
