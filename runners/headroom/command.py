"""python -m runners.headroom: the most that sharing could give on problems, and how much their agents share."""

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from threadpoolctl import threadpool_limits

from dpfbo.formats.files import replace_file
from runners.arguments import Parser, at_least
from runners.compose.composition import problem_in
from runners.compose.configuration import composing
from runners.compose.overrides import one_sentence, quoted
from runners.headroom.sharing import Headroom, common_points, headroom, values_at
from runners.record.terminal import say_error
from runners.sweep.plan import expanded, parse_seeds
from runners.user_errors import USER_ERRORS

HELP = """The most that sharing could give on a problem: the value of the best shared point, and the share of the
objectives' variance that all agents share. Everything is evaluated at points common to all agents: a Sobol set, or
those of the problem's grid. Writes results/headroom/<problem>.json.

Examples
  python -m runners.headroom problem=activity n_init=3
  python -m runners.headroom problem=synthetic_heterogeneous problem.alpha=0,0.3,0.7,1 n_init=3 --seeds 0..19
  python -m runners.headroom problem=landmine,school n_init=3 --points 64

Exit code: 0, 1 for a value that is refused or data that is missing, 2 for unknown overrides."""

NOTE = (
    "best: each agent's own best point; shared: the point that is best on average for the other agents (leave one "
    "out); few: expected best of n_init random points; random: a random point. All of the common points, in units of "
    "the metric, mean over the agents. variance shared: analysis of variance; noise counts as the agents' own."
)


@dataclass(frozen=True)
class ProblemHeadroom:
    """The headroom of one problem. found: one for each seed; a problem that does not follow the seed has one."""

    title: str
    metric: str
    n_agents: int
    n_init: int
    points: int
    seeds: tuple[int, ...]
    found: tuple[Headroom, ...]

    def as_json(self) -> dict[str, Any]:
        """All numbers, and the mean over the seeds with its standard error (None with one)."""
        numbers = {f.name: self.mean_and_se(f.name) for f in fields(Headroom)}
        return {**asdict(self), **{name: {"mean": mean, "se": se} for name, (mean, se) in numbers.items()}}

    def mean_and_se(self, name: str) -> tuple[float, float | None]:
        values = [getattr(one, name) for one in self.found]
        se = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        return statistics.fmean(values), se


def measure(cfg: DictConfig, title: str, seeds: Sequence[int], most: int) -> ProblemHeadroom:
    """The headroom of a configuration's problem. seeds: of the functions, the first only where data make them."""
    follows = "function_seed" in cfg.problem and OmegaConf.is_interpolation(cfg.problem, "function_seed")
    used, found = tuple(seeds if follows else seeds[:1]), []
    for seed in used:
        with_seed = cfg.copy()
        with_seed.seed = seed
        problem = problem_in(with_seed)
        x = common_points(problem, most)
        found.append(headroom(values_at(problem, x, seed), problem.reference, int(cfg.n_init)))
    return ProblemHeadroom(title, problem.metric, problem.n_agents, int(cfg.n_init), len(x), used, tuple(found))


def composed_problems(overrides: Sequence[str]) -> list[tuple[str, DictConfig]]:
    """The title and the configuration of each problem that the overrides name; commas multiply.

    An agent alone needs least of the settings, so it is composed for `algorithm=ts`.
    """
    with composing():
        given = expanded(overrides)
        shown = [[o for o in one if o.startswith("problem")] for one in given]
        titles = [" ".join(o.removeprefix("problem=").removeprefix("problem.") for o in one) for one in shown]
        return [
            (title or "synthetic", hydra.compose("config", ["algorithm=ts", *one]))
            for title, one in zip(titles, given, strict=True)
        ]


def table(results: Sequence[ProblemHeadroom]) -> Table:
    """One row for each problem."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("problem", overflow="fold")
    for name in ("metric", "N", "points", "seeds", "best", "shared", "few", "random", "variance shared"):
        shown.add_column(name, justify="right", no_wrap=True)
    for one in results:
        numbers = [_with_error(*one.mean_and_se(name)) for name in ("best", "shared", "few", "random")]
        share, se = one.mean_and_se("share")
        percent = f"{100 * share:.0f}" + ("" if se is None else f" ± {100 * se:.0f}") + " %"
        shown.add_row(one.title, one.metric, str(one.n_agents), str(one.points), str(len(one.seeds)), *numbers, percent)
    return shown


def _with_error(mean: float, se: float | None) -> str:
    return f"{mean:.4f}" if se is None else f"{mean:.4f} ± {se:.4f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; returns the exit code."""
    args = _parse(argv)
    console, results = Console(stderr=True), []
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
    try:
        seeds = parse_seeds(args.seeds)
        problems = composed_problems(args.overrides)
        with threadpool_limits(1), Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            for title, cfg in bar.track(problems, description="headroom"):
                results.append(measure(cfg, title, seeds, args.points))
                _write(args.results_dir / "headroom", results[-1])
    except KeyboardInterrupt:
        say_error("interrupted")
        return 130
    except (HydraException, OmegaConfBaseException) as error:
        say_error(one_sentence(str(error)))
        return 2
    except USER_ERRORS as error:
        say_error(str(error))
        return 1
    if args.json:
        print(json.dumps([one.as_json() for one in results], indent=1, allow_nan=False))
        return 0
    out = Console(highlight=False)
    out = out if out.is_terminal else Console(highlight=False, width=max(140, out.width))
    out.print(table(results))
    out.print(NOTE, markup=False)
    return 0


def _write(folder: Path, result: ProblemHeadroom) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.]+", "_", result.title).strip("_")
    content = json.dumps(result.as_json(), indent=1, allow_nan=False).encode() + b"\n"
    replace_file(folder / f"{name}.json", lambda file: file.write(content), durable=False)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m runners.headroom", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--seeds", default="0", help="of synthetic functions, such as 0..19 (default: 0)")
    parser.add_argument("--points", type=at_least(2), default=128, help="at most so many (default: 128)")
    parser.add_argument("--json", action="store_true", help="for a program, on standard output")
    parser.add_argument(
        "overrides", nargs="*", type=quoted, metavar="KEY=VALUE", help="the problem's settings, and n_init"
    )
    parser.add_folder("results_dir", Path("results"), "results folder (default: results)")
    return parser.parse_intermixed_args(argv)


if __name__ == "__main__":
    sys.exit(main())
