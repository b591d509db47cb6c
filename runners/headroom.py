"""python -m runners.headroom: the most that sharing could give on problems, and how much their agents share.

Let `f_n(x_k)` be the objective of agent n (larger is better) at K common points.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
import pandas as pd
import torch
from omegaconf import DictConfig, OmegaConf
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from threadpoolctl import threadpool_limits
from torch import Tensor

from dpfbo.formats.files import replace_text
from dpfbo.problems.problem import Problem
from dpfbo.rng import Streams
from dpfbo.space.domain import Grid
from runners.arguments import Parser, at_least
from runners.compose.composition import problem_of
from runners.compose.configuration import composing
from runners.compose.overrides import quoted
from runners.compose.sweep_line import expanded, parse_seeds
from runners.compose.typed import checked_settings
from runners.user_errors import exit_code

HELP = """What one shared point could give on a problem: the value of the best one, and the share of the
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


BLOCK = 16  # points evaluated at once: an agent's models for all of them may not fit into memory


def common_points(problem: Problem, most: int) -> Tensor:
    """At most `most` points of the domain in its own units, K x D: evenly spaced ones of a grid, else a Sobol set."""
    domain = problem.domain
    if isinstance(domain, Grid):
        return domain.points[:: math.ceil(len(domain.points) / most)]
    sobol = torch.quasirandom.SobolEngine(domain.dimension, scramble=True, seed=0)
    return domain.to_natural(sobol.draw(most, dtype=torch.float64))


def values_at(problem: Problem, x: Tensor, seed: int) -> Tensor:
    """`f_n(x_k)`, N x K: noiseless where the problem knows it, else one observation each. x: K x D."""
    agents, streams = torch.arange(problem.n_agents), Streams(seed)
    found = []
    for number, block in enumerate(x.split(BLOCK)):
        points = block.expand(len(agents), *block.shape)
        y = problem.evaluate(agents, points, streams, number)
        found.append(problem.true_value(agents, points, y))
    return torch.cat(found, 1)


def headroom(values: Tensor, reference: Tensor | None, n_init: int) -> dict[str, float]:
    """Numbers of one problem from values at common points, N x K; the first four are means over the agents.

    best: each agent's own best of the points. shared: the point that is best on average for all *other* agents, at
    this agent. few: expected best of n_init random points. random: mean over the points. share: see `shared_share`.
    reference: N values from which a value is subtracted for the metric, or None.

    Raises ValueError for fewer than 2 agents or points, or fewer than n_init points.
    """
    N, K = values.shape
    if N < 2 or max(2, n_init) > K:
        raise ValueError(f"headroom needs at least 2 agents and {max(2, n_init)} points, got {N} and {K}")
    others = values.sum(0) - values  # N x K
    at_points = {
        "best": values.amax(1),
        "shared": values.gather(1, others.argmax(1, keepdim=True))[:, 0],
        "few": expected_best(values, n_init),
        "random": values.mean(1),
    }
    metrics = {name: v if reference is None else reference - v for name, v in at_points.items()}
    return {**{name: float(v.mean()) for name, v in metrics.items()}, "share": shared_share(values)}


def expected_best(values: Tensor, n: int) -> Tensor:
    """The expected largest of n of the K values, drawn without replacement; N x K -> N.

    The k-th smallest is the largest drawn with probability `C(k - 1, n - 1) / C(K, n)`.
    """
    K = values.shape[1]
    p = [math.comb(k, n - 1) / math.comb(K, n) for k in range(K)]
    return values.sort(1).values @ torch.tensor(p, dtype=values.dtype)


def shared_share(values: Tensor) -> float:
    """The share `v_g / (v_g + v_h)` of `f_n(x) = c_n + g(x) + h_n(x)`, by analysis of variance; N x K values.

    `v_h` is the mean square of the residuals of agent and point means, `v_g` that of the point means less `v_h / N`,
    which N agents that share nothing would have too. Offsets c_n do not count, noise counts as the agents' own, and an
    estimate may be a little below 0 where nothing is shared. 0 where the objectives are constant.
    """
    N, K = values.shape
    centred = values - values.mean(1, keepdim=True)
    mean = centred.mean(0)
    own = float((centred - mean).square().sum() / ((N - 1) * (K - 1)))
    shared = float(mean.square().sum() / (K - 1)) - own / N
    return shared / (shared + own) if shared + own > 0 else 0.0


def composed_problems(overrides: Sequence[str]) -> list[tuple[str, DictConfig]]:
    """The title and the configuration of each problem that the overrides name; commas multiply.

    It is composed for `algorithm=ts`, agents that work alone, which needs the fewest settings.
    """
    found = []
    with composing():
        for one in expanded(overrides):
            words = (o.removeprefix("problem=").removeprefix("problem.") for o in one if o.startswith("problem"))
            found.append((" ".join(words) or "synthetic", hydra.compose("config", ["algorithm=ts", *one])))
    return found


def measure(cfg: DictConfig, title: str, seeds: Sequence[int], most: int) -> dict[str, Any]:
    """The headroom of a configuration's problem: its settings, what was `found` for each seed, means and errors.

    seeds: of the functions, the first only where data make them. most: number of points. A standard error is None
    with one seed.
    """
    follows = "function_seed" in cfg.problem and OmegaConf.is_interpolation(cfg.problem, "function_seed")
    used, found = list(seeds if follows else seeds[:1]), []
    for seed in used:
        with_seed = cfg.copy()
        with_seed.seed = seed
        problem = problem_of(checked_settings(with_seed)[1].problem)
        x = common_points(problem, most)
        found.append(headroom(values_at(problem, x, seed), problem.reference, int(cfg.n_init)))
    of_seeds = {name: pd.Series([one[name] for one in found]) for name in found[0]}
    return {
        "title": title, "metric": problem.metric, "n_agents": problem.n_agents, "n_init": int(cfg.n_init),
        "points": len(x), "seeds": used, "found": found,
        **{name: {"mean": v.mean(), "se": v.sem() if len(v) > 1 else None} for name, v in of_seeds.items()},
    }  # fmt: skip


def table(results: Sequence[dict[str, Any]]) -> Table:
    """One row for each problem."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("problem", overflow="fold")
    for name in ("metric", "N", "points", "seeds", "best", "shared", "few", "random", "variance shared"):
        shown.add_column(name, justify="right", no_wrap=True)
    for one in results:
        numbers = [_with_error(one[name], 1, 4) for name in ("best", "shared", "few", "random")]
        facts = (one["metric"], one["n_agents"], one["points"], len(one["seeds"]))
        shown.add_row(one["title"], *map(str, facts), *numbers, f"{_with_error(one['share'], 100, 0)} %")
    return shown


def _with_error(number: dict[str, float | None], scale: float, digits: int) -> str:
    return " ± ".join(f"{scale * value:.{digits}f}" for value in number.values() if value is not None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; returns the exit code."""
    args = _parse(argv)
    return exit_code(lambda: _run(args))


def _run(args: argparse.Namespace) -> None:
    console, results, folder = Console(stderr=True), [], args.results_dir / "headroom"
    seeds, problems = parse_seeds(args.seeds), composed_problems(args.overrides)
    with threadpool_limits(1):
        for title, cfg in track(problems, "headroom", console=console, disable=not console.is_terminal):
            results.append(measure(cfg, title, seeds, args.points))
            folder.mkdir(parents=True, exist_ok=True)
            name = re.sub(r"[^\w.]+", "_", title).strip("_")
            replace_text(folder / f"{name}.json", json.dumps(results[-1], indent=1, allow_nan=False) + "\n", False)
    out = Console(highlight=False)
    out = out if out.is_terminal else Console(highlight=False, width=max(140, out.width))
    out.print(table(results))
    out.print(NOTE, markup=False)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m runners.headroom", description=HELP, formatter_class=raw)
    parser.add_argument("--seeds", default="0", help="of synthetic functions, such as 0..19 (default: 0)")
    parser.add_argument("--points", type=at_least(2), default=128, help="at most so many (default: 128)")
    says = "the problem's settings, and n_init"
    parser.add_argument("overrides", nargs="*", type=quoted, metavar="KEY=VALUE", help=says)
    parser.add_folder("results_dir", Path("results"), "results folder (default: results)")
    return parser.parse_intermixed_args(argv)


if __name__ == "__main__":
    sys.exit(main())
