"""python -m runners.headroom: estimate how much agents could gain by sharing."""

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

HELP = """Estimate what agents could gain by sharing: the value of the best common point, and the share of the
objectives' variance that is common to all agents. All objectives are evaluated at the same points: a Sobol set, or
those of the problem's grid. Writes results/headroom/<problem>.json.

Examples
  python -m runners.headroom problem=activity n_init=3
  python -m runners.headroom problem=synthetic_heterogeneous problem.alpha=0,0.3,0.7,1 n_init=3 --seeds 0..19
  python -m runners.headroom problem=landmine,school n_init=3 --points 64

Exit code: 0, 1 for an invalid value or missing data, 2 for unknown overrides."""

NOTE = (
    "best: each agent's own best point; shared: the point that is best on average for the other agents (leave one "
    "out); few: expected best of n_init random points; random: a random point. All are common points, in units of the "
    "metric, averaged over the agents. variance shared: by analysis of variance; noise counts as the agents' own."
)


BLOCK = 16  # points evaluated at once, because models for all of them may not fit into memory


def common_points(problem: Problem, most: int) -> Tensor:
    """Return K <= `most` points of the domain in natural units, K x D.

    On a grid of G points, they are every k-th grid point, with k = ceil(G / most). On any other domain, they are a
    Sobol set with K = `most`.
    """
    domain = problem.domain
    if isinstance(domain, Grid):
        return domain.points[:: math.ceil(len(domain.points) / most)]
    sobol = torch.quasirandom.SobolEngine(domain.dimension, scramble=True, seed=0)
    return domain.to_natural(sobol.draw(most, dtype=torch.float64))


def values_at(problem: Problem, x: Tensor, seed: int) -> Tensor:
    """Return the objective `f_n(x_k)` (larger is better) of each agent n at each row x_k of x (K x D), as N x K.

    The values are noiseless if the problem knows the true values; otherwise each is one observation.
    """
    agents, streams = torch.arange(problem.n_agents), Streams(seed)
    found = []
    for number, block in enumerate(x.split(BLOCK)):
        points = block.expand(len(agents), *block.shape)
        y = problem.evaluate(agents, points, streams, number)
        found.append(problem.true_value(agents, points, y))
    return torch.cat(found, 1)


def headroom(values: Tensor, reference: Tensor | None, n_init: int) -> dict[str, float]:
    """Estimate what agents could gain by sharing; `values` (N x K) holds the values of N agents at the same K points.

    The first four results are means over the agents. best: the value at an agent's own best point. shared: the value
    at the point that is best on average for all *other* agents. few: the expected best value of n_init random points.
    random: the expected value at a random point. share: the result of `shared_share`.

    reference: N numbers, one for each agent. If given, the first four results are means of `reference - value`; if
    None, of the value itself.

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
    """Return the expected maximum of n values drawn without replacement from each row of K values; N x K -> N.

    The k-th smallest value is the maximum with probability `C(k - 1, n - 1) / C(K, n)`.
    """
    K = values.shape[1]
    p = [math.comb(k, n - 1) / math.comb(K, n) for k in range(K)]
    return values.sort(1).values @ torch.tensor(p, dtype=values.dtype)


def shared_share(values: Tensor) -> float:
    """Estimate the shared part `v_g / (v_g + v_h)` of the variance of `f_n(x) = c_n + g(x) + h_n(x)`; values: N x K.

    By analysis of variance, `v_h` is the mean square of the residuals after subtracting agent and point means. `v_g` is
    the mean square of the centred point means, minus `v_h / N`, the expected contribution of h_n to this mean square.
    Noise counts as part of h_n. The estimate may be below 0 if g is near 0, and is 0 if all objectives are constant.
    """
    N, K = values.shape
    centred = values - values.mean(1, keepdim=True)
    mean = centred.mean(0)
    own = float((centred - mean).square().sum() / ((N - 1) * (K - 1)))
    shared = float(mean.square().sum() / (K - 1)) - own / N
    return shared / (shared + own) if shared + own > 0 else 0.0


def composed_problems(overrides: Sequence[str]) -> list[tuple[str, DictConfig]]:
    """Return title and configuration (with `algorithm=ts`) of each problem in overrides such as `problem=a,b`."""
    found = []
    with composing():
        for one in expanded(overrides):
            words = (o.removeprefix("problem=").removeprefix("problem.") for o in one if o.startswith("problem"))
            found.append((" ".join(words) or "synthetic", hydra.compose("config", ["algorithm=ts", *one])))
    return found


def measure(cfg: DictConfig, title: str, seeds: Sequence[int], most: int) -> dict[str, Any]:
    """Measure for each seed what sharing could gain (`headroom`); return results, statistics and facts on the problem.

    The statistics are mean and standard error over the seeds; with one seed, the error is None. seeds: the seeds of the
    objectives; only the first is used if the objectives depend on no seed. most: the largest number of points at which
    the objectives are evaluated.
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
    """Return a table with one row for each problem."""
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
    """Run the command line `argv` and return the exit code."""
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
    parser = Parser(prog="python -m runners.headroom", description=HELP)
    parser.add_argument("--seeds", default="0", help="seeds of synthetic functions, as 0..19 (default: 0)")
    parser.add_argument("--points", type=at_least(2), default=128, help="largest number of points (default: 128)")
    says = "the problem's settings, and n_init"
    parser.add_argument("overrides", nargs="*", type=quoted, metavar="KEY=VALUE", help=says)
    parser.add_folder("results_dir", Path("results"), "results folder (default: results)")
    return parser.parse_intermixed_args(argv)


if __name__ == "__main__":
    sys.exit(main())
