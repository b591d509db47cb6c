"""python -m analysis.figures NAME: regret against the iteration, and regret against epsilon, as PNG and PDF."""

import argparse
import os
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from analysis.load import LoadError, Setting, by_metric, load, metric_label, seeds_phrase, settings

ACCOUNTANT = "pld"
FORMATS = ("png", "pdf")
SIZE, DPI = (7.2, 5.0), 250  # inches; 1800 pixels wide, made to be shown at 900
CAPTION_COLUMNS = 105

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito, without yellow
LINES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

LOOK = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
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
    figure, axes = _canvas()
    for i, group in enumerate(groups):
        look, curve = style(i), group.curve()
        axes.plot(
            curve.index, curve["mean"], color=look.colour, linestyle=look.line, marker=look.marker, label=group.label,
            markevery=(i, max(len(groups), group.rounds // 5)),
        )  # fmt: skip
        _band(axes, group, look.colour)
    axes.set_title(_title(groups, "by iteration"))
    axes.set_xlabel("iteration t (rounds after the initial points)")
    axes.set_xlim(0, max(g.rounds for g in groups))
    _finish(figure, axes, groups, "")
    return figure


def regret_by_epsilon(groups: Sequence[Setting], t: int) -> Figure:
    """One point with its error bar for each private setting, at the epsilon it has spent by round t; the way there, faintly.

    Settings without a finite epsilon, or with epsilon 0, are horizontal lines.
    """
    figure, axes = _canvas()
    at: dict[float, int] = {}
    for i, group in enumerate(groups):
        look, (mean, se), epsilon = style(i), group.at(t), epsilon_at(group, t)
        if epsilon is None or epsilon == 0:
            why = "ε = 0, nothing shared" if epsilon == 0 else "no noise" if group.private else "not private"
            axes.axhline(mean, color=look.colour, linestyle=look.line, label=f"{group.label} ({why})", zorder=1.5)
            axes.axhspan(mean - (se or 0), mean + (se or 0), color=look.colour, alpha=0.1, linewidth=0)
            continue
        way = trajectory(group, t)
        axes.plot(*way, color=look.colour, linestyle=look.line, alpha=0.4, linewidth=1.1)
        place = at[epsilon] = at.get(epsilon, -1) + 1
        axes.errorbar(
            [epsilon], [mean], [se] if se is not None else None, color=look.colour, marker=look.marker, label=group.label,
            markersize=7, capsize=3, linestyle="", transform=_beside(figure, place) + axes.transData, zorder=3,
        )  # fmt: skip
    axes.set_title(_title(groups, f"after {t} rounds, against privacy loss"))
    axes.set_xlabel(f"privacy loss ε ({ACCOUNTANT.upper()} accountant, δ = {_deltas(groups)})")
    axes.set_xlim(left=0)
    _finish(figure, axes, groups, f"Points and horizontal lines: t = {t}. Faint lines: t = 0 to {t}, as ε is spent. ")
    return figure


def epsilon_at(group: Setting, t: int) -> float | None:
    """Epsilon by the accountant of the axis, of all that was released before the query of round t; None: none finite."""
    epsilon = group.epsilon(ACCOUNTANT)
    if t == group.rounds or not epsilon:
        return epsilon
    if group.first.summary["accountant"] != ACCOUNTANT:
        raise LoadError(f"{group.label!r} has its {ACCOUNTANT} epsilon at the end only: leave out --round")
    return max(run.epsilon_spent()[t] for run in group.runs)


def trajectory(group: Setting, t: int) -> tuple[list[float], list[float]]:
    """Epsilon spent and regret at rounds 0..t; empty where the rounds were reported by another accountant than the axis."""
    if group.first.summary["accountant"] != ACCOUNTANT:
        return [], []
    return group.first.epsilon_spent()[: t + 1], group.curve()["mean"].tolist()[: t + 1]


def draw(groups: Sequence[Setting], out: Path, prefix: str, t: int | None) -> list[Path]:
    """Draw both pictures of settings that share a metric; the files written."""
    last = min(g.rounds for g in groups)
    if t is not None and not 1 <= t <= last:
        raise LoadError(f"round {t} cannot be drawn: all settings have rounds 1 to {last}")
    with plt.rc_context(LOOK):
        pictures = {
            "regret_by_iteration": regret_by_iteration(groups),
            "regret_by_epsilon": regret_by_epsilon(groups, t or last),
        }
        try:
            return [
                _save(figure, out / f"{prefix}_{name}.{kind}") for name, figure in pictures.items() for kind in FORMATS
            ]
        finally:
            for figure in pictures.values():
                plt.close(figure)


def caption(groups: Sequence[Setting]) -> str:
    """What a reader needs to know of the settings: N, P, q, delta, and what the errors are over."""
    s = groups[0].first.summary
    P = _several(g.first.config["algorithm"]["P"] for g in groups)
    private = [g for g in groups if g.private]
    parts = [f"N = {s['n_agents']} agents", f"P = {P} sub-regions"]
    if private:
        parts.append(f"q = {_several(g.first.config['privacy']['q'] for g in private)}")
        parts.append(f"δ = {_deltas(groups)} ({s['relation']}, user level)")
    text = f"{', '.join(parts)}. "
    if max(len(g.runs) for g in groups) == 1:
        return f"{text}Mean over the agents, one seed."
    return f"{text}Mean ± standard error over {seeds_phrase(groups)}."


def _canvas() -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=SIZE)
    figure.subplots_adjust(left=0.11, right=0.975, top=0.93, bottom=0.2)
    return figure, axes


def _finish(figure: Figure, axes: Axes, groups: Sequence[Setting], note: str) -> None:
    """Axis of the metric, legend and caption."""
    s = groups[0].first.summary
    values = np.concatenate([g.curve()["mean"].to_numpy() for g in groups])
    if s["lower_is_better"] and (values > 0).any() and (values >= 0).all():
        low, high = values[values > 0].min(), values.max()
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(low / 1.6, high * 1.25)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 1e3 else (1.0,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(f"{metric_label(s['metric'])} (mean over agents)")
    axes.legend(loc="upper right" if s["lower_is_better"] else "lower right", handlelength=3.2)
    text = textwrap.fill(note + caption(groups), CAPTION_COLUMNS)
    figure.text(0.015, 0.015, text, fontsize=8.5, color="#444444", verticalalignment="bottom")


def _band(axes: Axes, group: Setting, colour: str) -> None:
    curve = group.curve()
    if len(group.runs) > 1:
        low, high = curve["mean"] - curve["se"], curve["mean"] + curve["se"]
        axes.fill_between(curve.index.to_numpy(), low, high, color=colour, alpha=0.14, linewidth=0)


def _beside(figure: Figure, place: int) -> ScaledTranslation:
    """A shift by some points to the side, for errors bars that would cover each other at the same epsilon."""
    points = (0, 7, -7, 14, -14, 21, -21)[place % 7]
    return ScaledTranslation(points / 72, 0, figure.dpi_scale_trans)


def _title(groups: Sequence[Setting], text: str) -> str:
    s = groups[0].first.summary
    metric = metric_label(s["metric"])
    return f"{metric[0].upper()}{metric[1:]} {text}: {s['problem']} problem"


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
        tables = [settings(runs) for runs in by_metric(load(args.results_dir, args.name))]
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
