"""python -m runners.status: show the progress of an experiment's trials, from their files."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from dpfbo.extras import MissingPackage, needing
from runners.arguments import Parser
from runners.record.terminal import say_error
from runners.sweep import progress_table, slurm
from runners.sweep.durations import seconds_left
from runners.sweep.trials import PHASES, Trial, TrialState, known_trials, states_of

HELP = """Show the progress of a sweep's trials (or of plain runs), while it runs or afterwards, from its files alone.

Examples
  python -m runners.status                        every experiment in results
  watch -n 5 python -m runners.status fig2c       repeated every 5 seconds
  python -m runners.status fig2c --json           as JSON
  python -m runners.status --ray                  the actors of a Ray with a dashboard, and their GPU memory

done: all rounds; running: a process runs it; interrupted: resumes from its checkpoint when the sweep is started
again; failed: see the error; waiting: not started"""


@dataclass(frozen=True)
class ExperimentStatus:
    """The trials of one experiment and their states at one moment."""

    folder: Path
    trials: list[Trial]
    states: dict[tuple[str, int], TrialState]

    def shown(self) -> RenderableType:
        head = f"{self.folder.name}: {progress_table.counts(self.states)}"
        if (seconds := seconds_left(self.folder, self.trials, self.states)) is not None:
            head += f", about {timedelta(seconds=round(seconds))} left"
        job = slurm.in_words(self.folder)
        head = f"{head}\n{job}" if job else head
        return Group(Text(head), progress_table.report(self.trials, self.states), Text(""))

    def as_json(self) -> dict[str, Any]:
        counts = {phase: sum(s.phase == phase for s in self.states.values()) for phase in PHASES}
        trials = [{**asdict(trial), **self.states[trial.key].as_json()} for trial in self.trials]
        left = seconds_left(self.folder, self.trials, self.states)
        head = {"experiment": self.folder.name, "results": str(self.folder), "counts": counts, "seconds_left": left}
        return {**head, "trials": trials}


def report(folder: Path) -> ExperimentStatus:
    """Return the status of the experiment in `folder`. Raises FileNotFoundError if it has no trial."""
    trials = known_trials(folder)
    if not trials:
        others = ", ".join(path.name for path in experiments(folder.parent))
        hint = f"there are results of {others}" if others else "there are no results yet"
        raise FileNotFoundError(f"no trial of {folder.name!r} in {folder.parent} ({hint})")
    return ExperimentStatus(folder, trials, states_of(folder, trials))


def experiments(results: Path) -> list[Path]:
    """Return the folders in `results` that hold trials."""
    return [path for path in sorted(results.glob("*")) if path.is_dir() and known_trials(path)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; return 0, or 1 after an error."""
    args = _parse(argv)
    try:
        if args.ray:
            return _say_actors(args.json)
        folders = [args.results_dir / name for name in args.experiments] or experiments(args.results_dir)
        if not folders:
            raise FileNotFoundError(f"there are no results in {args.results_dir}: run python -m runners.sweep --help")
        reports = [report(folder) for folder in folders]
        if args.json:
            print(json.dumps([each.as_json() for each in reports], indent=1))
        else:
            Console(highlight=False).print(*(each.shown() for each in reports))
    except (FileNotFoundError, ConnectionError, MissingPackage) as error:
        say_error(str(error))
        return 1
    except BrokenPipeError:  # `head` closes its pipe
        pass
    return 0


def _say_actors(as_json: bool) -> int:
    with needing("ray", "--ray"):
        from runners.executor.ray import state
    rows = state.actors()
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        Console(highlight=False).print(state.table(rows) if rows else "no actor is alive")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m runners.status", description=HELP)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="its experiment_name; default: all")
    parser.add_argument("--json", action="store_true", help="print JSON, one object for each experiment")
    parser.add_argument("--ray", action="store_true", help="actors of the Ray at RAY_ADDRESS, or on this machine")
    parser.add_folder("results_dir", Path("results"), "results folder (default: results)")
    args = parser.parse_args(argv)
    if args.ray and args.experiments:
        parser.error(
            f"--ray shows the actors of every experiment, so it takes no EXPERIMENT, got {args.experiments[0]!r}"
        )
    for name in args.experiments:
        if Path(name).name != name:
            parser.error(f"EXPERIMENT must be the name of a folder in {args.results_dir}, got {name!r}")
    return args


if __name__ == "__main__":
    sys.exit(main())
