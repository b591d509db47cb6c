"""The folder in which `dpfbo.optimize` keeps a study."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dpfbo import run_summary
from dpfbo.checkpoint import Checkpoint, RunOrigin, check_charged
from dpfbo.extras import needing
from dpfbo.federated.federation import FederatedResult
from dpfbo.formats.bounded import read_object
from dpfbo.formats.run_folder import RunFolder
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.mechanism_code import code_digests
from dpfbo.problems.custom import Custom
from dpfbo.records import Shown
from dpfbo.run_result import Round
from dpfbo.study.study import Study

if TYPE_CHECKING:
    from dpfbo.study.optimization import Optimization

_PROGRESS_SECONDS = 1.0  # the least time between two writes of progress.json
_SUMMARY_AGENTS = 100  # with more agents, a summary does not list their best queries


@dataclass
class StudyFolder:
    """The folder `<root>/<algorithm>-<setting>/<seed>` in which `dpfbo.optimize` keeps a study.

    setting: a hash of the study's settings except its seed. epsilon: the privacy budget; None without privacy, or if
    the noise multiplier was given instead. noted: the time of the last write of progress.json.
    """

    study: Study
    setting: str
    epsilon: float | None
    files: RunFolder
    checkpoint: Checkpoint
    noted: float = 0.0

    @staticmethod
    def of(root: Path, study: Study, epsilon: float | None) -> "StudyFolder":
        setting = replace(study, seed=0).digest[:12]
        files = RunFolder(root.absolute() / f"{study.algorithm.name}-{setting}" / str(study.seed))
        origin = RunOrigin(None, code_digests())
        return StudyFolder(study, setting, epsilon, files, Checkpoint(files.checkpoint_path, study.digest, origin))

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create the folder, and lock it until the `with` block ends.

        Raises MissingPackage if the packages that write a run's files are not installed.
        """
        with needing("run", "optimize with a folder"):
            import pyarrow  # noqa: F401
            import yaml  # noqa: F401
        with self.files.opened(), self.files.failures_kept():
            yield

    def first_event(self, function: str, problem: Custom) -> dict[str, Any]:
        """Return the first line of evaluations.jsonl, which names the study and the function."""
        return {"event": "study", "study": self.study.digest, "function": function, "maximize": problem.maximize}

    def restore(self, result: FederatedResult, ledger: Ledger) -> bool:
        """Add the finished rounds to the result. Returns True if all rounds are finished and recorded.

        Raises LedgerError if the ledger belongs to another run, or lacks a broadcast of a finished round.
        """
        if self.study.plan.events and ledger.path == self.files.ledger_path:
            ledger.check_covers(self.study.coverage())
            ledger.bind(self.study.coverage())
        known = len(check_charged(self.checkpoint.rounds(), ledger))
        self.checkpoint.forget_from(known)
        result.rounds.read_back = self.checkpoint.record
        for done in self.checkpoint.rounds(known):
            result.add(done)
        summary, path = None, self.files.path / "summary.json"
        if known > self.study.rounds:
            summary = read_object(path)
        if summary is None or summary["rounds"] != self.study.rounds:
            path.unlink(missing_ok=True)  # it describes only the rounds before the study was stopped
            return False
        return True

    def add(self, done: Round, found: "Optimization") -> None:
        """Add a finished round to the checkpoint, and update progress.json at most once in a second."""
        self.checkpoint.append(done)
        if time.monotonic() > self.noted + _PROGRESS_SECONDS:
            plan, rounds = self.study.plan, self.study.rounds
            self.files.note_progress(
                run_summary.progress(found.result, rounds, self._facts(found), plan.epsilon_of_nothing)
            )
            self.noted = time.monotonic()

    def write(self, found: "Optimization") -> None:
        """Write the records of all rounds so far."""
        import yaml

        from dpfbo import tables

        study, result, ledger = self.study, found.result, found.ledger
        seeded, agents = study.rng == "seeded", torch.arange(study.n_agents, device="cpu")
        summary = {
            **self._facts(found),
            "rounds": len(result.rounds) - 1,
            **run_summary.outcome(result, study.plan, seeded, found.epsilons, len(ledger.charges)),
            "best": found.best().rows() if seeded and study.n_agents <= _SUMMARY_AGENTS else None,
            "stopped": found.stopped,
        }
        server = tables.server_table(result.server, result.diagnostics if seeded else None)
        rows = tables.row_groups(result.rounds, agents, Shown.of(found.problem), study.space)
        config = json.loads(json.dumps(self._config(found)))  # YAML cannot write NumPy's numbers
        self.files.write(yaml.safe_dump(config, sort_keys=False), rows, server, summary)

    def _facts(self, found: "Optimization") -> dict[str, Any]:
        study, problem, plan = self.study, found.problem, self.study.plan
        return {
            "experiment": self.files.path.parents[1].name, "setting": self.setting,
            "label": self.files.path.parent.name.removesuffix(f"-{self.setting}"),
            "problem": problem.name, "algorithm": study.algorithm.name, "seed": study.seed,
            "n_agents": study.n_agents, "rounds": study.rounds, "metric": problem.metric,
            "lower_is_better": problem.lower_is_better, "private": study.algorithm.private, "rng": study.rng,
            "delta": plan.delta, "relation": plan.relation, "accountant": study.accountant,
        }  # fmt: skip

    def _config(self, found: "Optimization") -> dict[str, Any]:
        study, a, m = self.study, self.study.algorithm, self.study.mechanism
        return {
            "seed": study.seed, "rounds": study.rounds, "n_init": study.n_init,
            "problem": {
                "name": found.problem.name, "n_agents": study.n_agents,
                "maximize": getattr(found.problem, "maximize", True),
                "space": None if study.space is None else study.space.to_dict(),
            },
            "algorithm": {
                "name": a.name, "server": None if a.server is None else a.server.__name__, "private": a.private,
                "P": a.P, "M": a.M, "lengthscale": a.lengthscale, "follow": a.follow, "design": a.design,
            },
            "weights": type(study.weights).__name__,
            "privacy": {
                "epsilon": self.epsilon, "z": m.noise_multiplier, "q": m.sampling_probability, "S": m.clip_norm,
                "delta": study.delta, "rng": study.rng, "accountant": study.accountant,
            },
        }  # fmt: skip
