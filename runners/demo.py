"""python -m runners.demo: seven settings of the family on the paper's synthetic problem, a few seeds each."""

import argparse
import logging
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits

from dpfbo import checks
from dpfbo.formats.words import epsilon_in_words
from dpfbo.run_result import Round
from runners.arguments import Parser
from runners.compose.composition import Composition
from runners.compose.configuration import composing
from runners.compose.overrides import one_sentence, quoted
from runners.record.run_folder import RunFolder
from runners.record.terminal import say_error
from runners.recorded_run import run_configuration
from runners.user_errors import USER_ERRORS

NAME = "demo"
SETTINGS = {
    "TS": ["algorithm=ts"],
    "FTS-DE": ["algorithm=fts_de"],
    "DP-FTS z=1": ["algorithm=dp_fts", "privacy.z=1.0"],
    "DP-FTS z=2": ["algorithm=dp_fts", "privacy.z=2.0"],
    "DP-FTS-DE z=1": ["algorithm=dp_fts_de", "privacy.z=1.0"],
    "DP-FTS-DE z=2": ["algorithm=dp_fts_de", "privacy.z=2.0"],
    "private prior epsilon=1": ["algorithm=dp_prior", "privacy.epsilon=1.0"],
}


@dataclass(frozen=True)
class DemoRun:
    """One setting with one seed, and its run folder."""

    title: str
    cfg: DictConfig
    folder: Path

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").exists()

    @property
    def rounds(self) -> int:
        """Rounds to count in the progress: 0..T."""
        return int(self.cfg.rounds) + 1


class DemoProgress:
    """One bar over all rounds of all runs; where there is no terminal, one line for each finished run."""

    def __init__(self, runs: Sequence[DemoRun]) -> None:
        self._console = Console(stderr=True)
        self._n_runs, self._run, self._number = len(runs), runs[0], 0
        self._epsilon, self._status = 0.0, ""
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.percentage:.0f} %"),
            TextColumn("{task.fields[status]}"), TimeElapsedColumn(), TimeRemainingColumn(),
            console=self._console, disable=not self._console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("demo", total=sum(run.rounds for run in runs), status="")

    def __enter__(self) -> "DemoProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, run: DemoRun) -> None:
        self._run, self._number, self._epsilon = run, self._number + 1, 0.0
        self._bar.update(self._task, description=f"{self._number}/{self._n_runs} {run.title}", status="")

    def __call__(self, done: Round) -> None:
        if done.server is not None:
            self._epsilon = done.server.epsilon
        self._status = f"regret {done.agents.mean:.4f}  epsilon {epsilon_in_words(self._epsilon)}"
        status = f"round {done.agents.round}/{self._run.rounds - 1}  {self._status}"
        self._bar.update(self._task, advance=1, status=status)

    def end(self) -> None:
        if not self._console.is_terminal:
            self._console.print(f"{self._number}/{self._n_runs} {self._run.title}: {self._status}", highlight=False)


def compose(results_dir: str, n_seeds: int, overrides: Sequence[str] = ()) -> list[DemoRun]:
    """All runs of the demo, setting by setting. overrides: Hydra overrides for every run."""
    runs = []
    with composing():
        for title, setting in SETTINGS.items():
            cfg = hydra.compose("config", [f"experiment={NAME}", *setting, *overrides])
            checks.probability("privacy.q", cfg.privacy.q)
            if cfg.algorithm.get("prior") is not None:
                cfg.privacy.q = 1.0  # overrides are meant for the sampled algorithms
            checks.integer("rounds", cfg.rounds, minimum=1, maximum=checks.MOST_ROUNDS)
            checks.one_of("privacy.rng (of the demo)", cfg.privacy.rng, ("seeded",))
            cfg.results_dir = results_dir
            composition = Composition.of(cfg)
            name, cfg = composition.names.setting, composition.given  # with the noise multiplier of a target epsilon
            for seed in range(n_seeds):
                with_seed = cfg.copy()
                with_seed.seed = seed
                folder = Path(results_dir).absolute() / NAME / name / str(seed)
                runs.append(DemoRun(f"{title}, seed {seed}", with_seed, folder))
    return runs


def clear(run: DemoRun) -> None:
    """Empty a run's folder, unless another process is writing there (ResultsError)."""
    if not run.folder.is_dir():
        return
    with RunFolder(run.folder).opened():
        for path in run.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != ".lock":
                path.unlink()


def demo(runs: Sequence[DemoRun], fresh: bool = False) -> None:
    """Execute the runs that are not finished, or with `fresh` all of them, their old files deleted first."""
    if fresh:
        for run in runs:
            clear(run)
    todo = [run for run in runs if not run.finished]
    if len(todo) < len(runs):
        say(f"{len(runs) - len(todo)} of {len(runs)} runs are finished and skipped (--fresh runs them again)")
    if not todo:
        return
    # numpy gets one thread too: more threads gain nothing here and stall a busy machine
    with threadpool_limits(1), DemoProgress(todo) as progress:
        for run in todo:
            progress.begin(run)
            run_configuration(run.cfg, progress)
            progress.end()


def say(message: str) -> None:
    print(message, file=sys.stderr)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m runners.demo",
        description="TS, FTS-DE, DP-FTS and DP-FTS-DE at two noise levels, and the private prior, on the paper's "
        "synthetic problem.",
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="seeds of each setting, each another function (default: 3)"
    )
    parser.add_argument("--fresh", action="store_true", help="delete the demo's finished runs and run them again")
    parser.add_argument(
        "overrides", nargs="*", type=quoted, metavar="KEY=VALUE", help="settings of every run, such as rounds=20"
    )
    parser.add_folder("results_dir", Path("results"), "results folder (default: results)")
    args = parser.parse_args(argv)
    if args.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {args.seeds}")
    for key, option in {"seed": "--seeds", "experiment_name": "results_dir=FOLDER"}.items():
        if any(override.lstrip("+").startswith(f"{key}=") for override in args.overrides):
            parser.error(f"{key} cannot be overridden here: use {option}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; the exit code is 0, 1 for an error, 2 for bad settings, 130 when interrupted."""
    args = _parse(argv)
    logging.basicConfig(format="%(levelname)s: %(message)s")
    begin = time.perf_counter()
    try:
        runs = compose(str(args.results_dir), args.seeds, args.overrides)
        demo(runs, args.fresh)
    except KeyboardInterrupt:
        say_error("interrupted; finished runs are kept, and the same command goes on")
        return 130
    except (HydraException, OmegaConfBaseException) as error:
        say_error(one_sentence(str(error)))
        return 2
    except USER_ERRORS as error:
        say_error(str(error))
        return 1
    folder = Path(args.results_dir) / NAME
    print(f"{len(runs)} runs in {folder}, {time.perf_counter() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
