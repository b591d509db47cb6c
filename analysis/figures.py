"""python -m analysis.figures NAME: regret against the iteration, and regret against epsilon, as PNG and PDF.

Runs that were calibrated to target epsilons make one picture, of regret against the target; see `analysis.frontier`.
"""

import argparse
import math
import os
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from analysis import frontier
from analysis.load import LoadError, Run, Setting, by_metric, load, metric_label, seeds_phrase, settings

ACCOUNTANT = "pld"
FORMATS = ("png", "pdf")
DPI = 250  # 1800 pixels wide, to be shown at 900
WIDTH, PLOT_HEIGHT, LEGEND_ROW, BELOW = 7.2, 3.6, 0.22, 1.1  # inches
ASIDE = 0.12  # inches between points at the same epsilon
CAPTION_COLUMNS = 112
LEGEND_CHARACTERS = 30  # of the longest label in a legend of two columns

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito, without yellow
LINES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (9, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

LOOK: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Style:
    """How a setting looks in every picture: told apart by colour, and without it by line and marker."""

    colour: str
    line: str | tuple[int, tuple[int, ...]]
    marker: str


def style(i: int) -> Style:
    return Style(COLOURS[i % len(COLOURS)], LINES[i % len(LINES)], MARKERS[i % len(MARKERS)])


def regret_by_iteration(groups: Sequence[Setting]) -> Figure:
    """One line with its band for each setting: mean and standard error over the seeds."""
    figure, axes = _canvas(groups, "by iteration")
    for i, group in enumerate(groups):
        look, curve = style(i), group.curve()
        x, mean, se = curve.index.to_numpy(), curve["mean"].to_numpy(), curve["se"].to_numpy()
        marks = (i, max(len(groups), group.rounds // 5))
        axes.plot(
            x, mean, label=group.label, color=look.colour, linestyle=look.line, marker=look.marker, markevery=marks
        )
        if len(group.runs) > 1:
            axes.fill_between(x, mean - se, mean + se, color=look.colour, alpha=0.12, linewidth=0)
    axes.set_xlabel("iteration t (rounds after the initial points)")
    axes.set_xlim(0, max(g.rounds for g in groups) * 1.01)
    _metric_axis(axes, groups, np.concatenate([g.curve()["mean"].to_numpy() for g in groups]))
    _legend_and_caption(figure, axes, groups, caption(groups))
    return figure


def regret_by_epsilon(groups: Sequence[Setting], t: int) -> Figure:
    """One point with its error bar for each private setting, at the epsilon spent by round t; the way there, faintly.

    Settings without a finite epsilon, or with epsilon 0, are horizontal lines.
    """
    figure, axes = _canvas(groups, f"after {t} rounds, against privacy loss")
    epsilons = [epsilon_at(group, t) for group in groups]
    ends = []
    for i, (group, epsilon) in enumerate(zip(groups, epsilons, strict=True)):
        look, (mean, se) = style(i), group.at(t)
        error = se or 0.0
        ends += [mean - error, mean, mean + error]
        if epsilon is None or epsilon == 0:
            why = "ε = 0, nothing shared" if epsilon == 0 else "no noise" if group.private else "not private"
            axes.axhline(mean, color=look.colour, linestyle=look.line, label=f"{group.label} ({why})", zorder=1.5)
            axes.axhspan(mean - error, mean + error, color=look.colour, alpha=0.1, linewidth=0)
            continue
        axes.plot(*trajectory(group, t), color=look.colour, linestyle=look.line, alpha=0.45, linewidth=1.2)
        aside = epsilons[:i].count(epsilon) - (epsilons.count(epsilon) - 1) / 2
        shift = ScaledTranslation(aside * ASIDE, 0, figure.dpi_scale_trans)
        axes.errorbar(
            [epsilon], [mean], [error], label=group.label, color=look.colour, marker=look.marker, markersize=7,
            capsize=3, linestyle="", transform=axes.transData + shift, zorder=3,
        )  # fmt: skip
    axes.set_xlabel(f"privacy loss ε ({ACCOUNTANT.upper()} accountant, δ = {_deltas(groups)})")
    axes.set_xlim(0, 1.1 * (max(epsilon or 0.0 for epsilon in epsilons) or 1.0))
    _metric_axis(axes, groups, np.array(ends), headroom=3.0)
    note = f"Points and horizontal lines: after {t} rounds; points at one ε are drawn side by side. "
    _legend_and_caption(figure, axes, groups, f"{caption(groups)} {note}Faint lines: the rounds before, as ε is spent.")
    return figure


def epsilon_at(group: Setting, t: int) -> float | None:
    """Epsilon by the axis' accountant, of all that was released before the query of round t; None: none finite."""
    epsilon = group.epsilon(ACCOUNTANT)
    if t == group.rounds or not epsilon:
        return epsilon
    if group.first.summary["accountant"] != ACCOUNTANT:
        raise LoadError(f"{group.label!r} has its {ACCOUNTANT} epsilon at the end only: leave out --round")
    return max(run.epsilon_spent()[t] for run in group.runs)


def trajectory(group: Setting, t: int) -> tuple[list[float], list[float]]:
    """Epsilon spent and regret at rounds 0..t; empty where another accountant than the axis' reported the rounds."""
    if group.first.summary["accountant"] != ACCOUNTANT:
        return [], []
    return group.first.epsilon_spent()[: t + 1], group.curve()["mean"].tolist()[: t + 1]


def draw(groups: Sequence[Setting], out: Path, prefix: str, t: int | None) -> list[Path]:
    """Draw both pictures of settings that share a metric; the files written."""
    last = min(g.rounds for g in groups)
    if t is not None and not 1 <= t <= last:
        raise LoadError(f"round {t} cannot be drawn: all settings have rounds 1 to {last}")
    with mpl.rc_context(LOOK):  # figures of their own, without pyplot: no display, nothing to close
        pictures = {
            "regret_by_iteration": regret_by_iteration(groups),
            "regret_by_epsilon": regret_by_epsilon(groups, t or last),
        }
        return [_save(figure, out / f"{prefix}_{name}.{kind}") for name, figure in pictures.items() for kind in FORMATS]


def draw_frontier(runs: Sequence[Run], out: Path, prefix: str, t: int | None) -> list[Path]:
    """Draw regret against the target epsilons that the runs were calibrated to, with its numbers; the files written."""
    found = frontier.panels(runs, t)
    with mpl.rc_context(LOOK):
        picture = frontier.figure(found)
        paths = [_save(picture, out / f"{prefix}.{kind}") for kind in FORMATS]
    return [*paths, frontier.write_table(found, out / f"{prefix}.csv")]


def caption(groups: Sequence[Setting]) -> str:
    """What a reader needs to know of the settings: N, P, q, delta, and what the errors are over."""
    s = groups[0].first.summary
    P = {g.first.config["algorithm"]["P"] for g in groups}
    private = [g for g in groups if g.private]
    parts = [f"N = {s['n_agents']} agents", f"P = {_several(P)} sub-region{'s' * (max(P) > 1)}"]
    if private:
        parts.append(f"q = {_several(g.first.config['privacy']['q'] for g in private)}")
        parts.append(f"δ = {_deltas(groups)} ({s['relation']}, user level)")
    text = f"{', '.join(parts)}. "
    if max(len(g.runs) for g in groups) == 1:
        return f"{text}Mean over the agents, one seed."
    return f"{text}Mean ± standard error over {seeds_phrase(groups)}."


def _canvas(groups: Sequence[Setting], title: str) -> tuple[Figure, Axes]:
    """Axes between a legend and title above, and a caption below; all in inches, so that nothing meets."""
    above = 0.45 + LEGEND_ROW * math.ceil(len(groups) / _legend_columns(groups))
    height = above + PLOT_HEIGHT + BELOW
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0.75 / WIDTH, BELOW / height, 1 - 0.9 / WIDTH, PLOT_HEIGHT / height))
    s = groups[0].first.summary
    metric = metric_label(s["metric"])
    text = f"{metric[0].upper()}{metric[1:]} {title}: {s['problem'].replace('_', ' ')} problem"
    figure.text(0.75 / WIDTH, 1 - 0.12 / height, text, fontsize=12, verticalalignment="top")
    return figure, axes


def _metric_axis(axes: Axes, groups: Sequence[Setting], values: np.ndarray, headroom: float = 1.3) -> None:
    """The vertical axis, spanned by `values`: logarithmic where they allow it."""
    s = groups[0].first.summary
    axes.set_ylabel(f"{metric_label(s['metric'])} (mean over agents)")
    if not (s["lower_is_better"] and (values >= 0).all() and (values > 0).any()):
        return
    low, high = values[values > 0].min(), values.max()
    axes.set_yscale("log", nonpositive="clip")
    axes.set_ylim(low / 1.3, high * headroom)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 1e3 else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _legend_columns(groups: Sequence[Setting]) -> int:
    return 2 if max(len(g.label) for g in groups) <= LEGEND_CHARACTERS else 1


def _legend_and_caption(figure: Figure, axes: Axes, groups: Sequence[Setting], text: str) -> None:
    n = _legend_columns(groups)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=n, handlelength=3.5, borderaxespad=0.2)
    figure.text(
        0.12, 0.08, textwrap.fill(text, CAPTION_COLUMNS), fontsize=8.5, color="#444444",
        transform=figure.dpi_scale_trans, verticalalignment="bottom",
    )  # fmt: skip


def _deltas(groups: Sequence[Setting]) -> str:
    return _several(g.first.summary["delta"] for g in groups if g.private) or "–"


def _several(values: Iterable[float]) -> str:
    """`1`, `1 or 2`, or `1, 2 or 4`."""
    texts = [f"{value:.3g}" for value in sorted(set(values))]
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _save(figure: Figure, path: Path) -> Path:
    """Write a picture whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(descriptor)
    try:
        figure.savefig(temporary, dpi=DPI)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.figures", description="Regret against the iteration and against epsilon, PNG and PDF."
    )
    parser.add_argument("name", metavar="NAME", help="experiment: a folder in the results folder")
    parser.add_argument("--results-dir", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder of the pictures (default: figures)")
    parser.add_argument("--round", type=int, help="round of the points against epsilon (default: the last)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the pictures and print their paths; the exit code is 0, or 1 when there is nothing to draw."""
    args = _parse(argv)
    try:
        runs = load(args.results_dir, args.name)
        if frontier.has_targets(runs):
            for path in draw_frontier(runs, args.out, args.name, args.round):
                print(path)
            return 0
        tables = [settings(group) for group in by_metric(runs)]
        for groups in tables:
            prefix = args.name if len(tables) == 1 else f"{args.name}_{slug(groups)}"
            for path in draw(groups, args.out, prefix, args.round):
                print(path)
    except (LoadError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def slug(groups: Sequence[Setting]) -> str:
    """Tells the files of several problems or metrics in one experiment apart."""
    s = groups[0].first.summary
    score = groups[0].first.config["problem"].get("score")
    return "_".join(str(part) for part in (s["problem"], s["n_agents"], s["metric"], score) if part)


if __name__ == "__main__":
    sys.exit(main())
