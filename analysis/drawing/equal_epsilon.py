"""Regret against epsilon: private algorithms calibrated to target epsilons, and algorithms without an epsilon."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.drawing.captions import joined
from analysis.drawing.looks import Style, of_algorithm, stretched, variants
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.drawing.picture import JOINED, LEVEL, PicturePanel, Series, Span, XAxis, picture
from analysis.labels import NAMES, by_algorithm, joined_by_or, problem_label, value_in_words, variant_in_words
from analysis.load import LoadError, Run, trust_in_words, variant
from dpfbo.formats.words import large_delta, metric_in_words

PointKey = tuple[str, int, str, float | None]  # algorithm, its P, who adds the noise, and the target epsilon

X_LABEL = "privacy loss ε of the whole run"


def has_targets(runs: Iterable[Run]) -> bool:
    """Return True if the private runs were calibrated to more than one epsilon."""
    return len({_target(run) for run in runs} - {None}) > 1


def lengths(runs: Iterable[Run]) -> list[int]:
    """Return the distinct T (numbers of rounds) of the runs with a target epsilon, sorted."""
    return sorted({run.summary["rounds"] for run in runs if _target(run) is not None})


def table(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a row for each algorithm, target epsilon, variant of the problem, and number of rounds T.

    The target epsilon is empty if the algorithm is not private. epsilon: the largest epsilon over the seeds, by the
    runs' own accountant; 0 if nothing was shared, empty if messages were shared without privacy. average: mean metric
    over rounds 1..T; last: metric after round T. Standard errors are over the seeds.

    Raises LoadError if a variant has no private run with a target epsilon, or if several settings belong to one row.
    """
    known = lengths(runs)
    if len(known) < 2:
        return pd.DataFrame(_rows(runs, None))
    return pd.DataFrame([row for T in known for row in _rows(of_length(runs, T), T)])


def of_length(runs: Sequence[Run], T: int) -> list[Run]:
    """Return the runs to draw for T: the shortest suitable runs of each group.

    Runs form a group if they have the same variant of the problem, length-scale, algorithm, P, trust and target
    epsilon. A run of T rounds is suitable. A longer run is suitable if it is not private, or if it made at most T
    releases in all; some private algorithms do not release in every round.
    """
    found: dict[object, list[Run]] = {}
    for run in runs:
        rounds, private = run.summary["rounds"], run.summary["private"]
        if rounds == T or (rounds > T and (not private or run.summary["n_charges"] <= T)):
            found.setdefault((_variant(run), _key(run)), []).append(run)
    shortest = {key: min(run.summary["rounds"] for run in group) for key, group in found.items()}
    return [run for key, group in found.items() for run in group if run.summary["rounds"] == shortest[key]]


def figure(found: pd.DataFrame, aside: str = "", style: PageStyle = SCREEN) -> Figure:
    """Draw `found`, the result of `table`. aside: last sentence of the caption."""
    looks, several = _looks(found), sorted(found["rounds"].unique())
    views = [("average", "mean over rounds 1 to {}"), ("last", "after round {}")]
    if len(several) > 1:
        views = [("average", "mean over rounds 1 to T = {}")]
        aside = joined(
            f"Methods that spend ε round by round were run for T = {joined_by_or(several)}, each with its own noise; "
            "runs of the others begin in the same way for all T.",
            aside,
        )
    by = "" if style.captioned else f" ({found['privacy'].iloc[0].partition(' (')[0].rpartition(', ')[0]})"
    panels: list[PicturePanel | None] = []
    for title in found["panel"].unique():
        for T in several:
            rows = found[(found["panel"] == title) & (found["rounds"] == T)]
            for column, words in views:
                head = f"{title}: {words.format(T)}"
                panels.append(_panel(head, rows, column, looks, X_LABEL + by) if len(rows) else None)
    counts = sorted(found["seeds"].unique())
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    errors = f"Mean over agents and seeds; bands and bars: ± one standard error over {seeds} seeds."
    caption = (
        f"{'; '.join(found['sharing'].unique())}. ε: {'; '.join(found['privacy'].unique())}. Horizontal lines: nothing "
        f"shared (ε = 0), or shared without privacy. {'Mean over agents, one seed.' if counts[-1] == 1 else errors}"
    )
    metric = metric_in_words(found["metric"].iloc[0])
    heading = f"{metric[0].upper()}{metric[1:]} at equal privacy"
    columns = max(len(several), len(views))
    return picture(heading, panels, joined(caption, aside), (metric, ""), style, columns, legend_above=True)


def _rows(runs: Sequence[Run], t: int | None) -> list[dict[str, object]]:
    """Return a row for each algorithm and target epsilon in each panel, with the results up to round t.

    A panel shows one variant of the problem with one length-scale. If t is None, each panel shows the results up to the
    last round of the panel's shortest run. Runs for which `_sends_queries` is False do not depend on the length-scale,
    so the rows of these runs are repeated in the panels of all length-scales.
    """
    variants: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        if _sends_queries(run):
            variants.setdefault(_variant(run), []).append(run)
    several, sizes = len({key[-1] for key in variants}) > 1, len({run.summary["n_agents"] for run in runs}) > 1
    for run in runs:
        if not _sends_queries(run):
            alike = [group for key, group in variants.items() if key[:-1] == _variant(run)[:-1]]
            for group in alike or [variants.setdefault(_variant(run), [])]:
                group.append(run)
    ordered = sorted(variants.items(), key=lambda pair: str(pair[0]))
    return [row for _, group in ordered for row in _panel_rows(group, several, sizes, t)]


def _panel_rows(runs: Sequence[Run], name_lengthscale: bool, name_size: bool, t: int | None) -> list[dict[str, object]]:
    first, t = runs[0], t or min(run.summary["rounds"] for run in runs)
    title = problem_label(first.summary["problem"]) + variant_in_words(first.config["problem"])
    if name_size:
        title += f", N = {first.summary['n_agents']}"
    if name_lengthscale:
        title += f", length-scale {value_in_words(first.config['algorithm'].get('lengthscale'))}"
    private = [run for run in runs if _target(run) is not None]
    if not private:
        raise LoadError(
            f"{title} has no private run at a target epsilon: run python -m runners.sweep experiment=frontier"
        )
    s = private[0].summary
    at = f"δ = {s['delta']:.3g}{large_delta([s['delta']])}"
    privacy = f"{s['accountant'].upper()} accountant, {at}, {s['relation']}, user level, N = {s['n_agents']}"
    sharing = ", ".join(by_algorithm(key, [run.config for run in private]) for key in ("q", "S"))
    common = {"panel": title, "metric": first.summary["metric"], "rounds": t}
    by_point: dict[PointKey, list[Run]] = {}
    for run in runs:
        if _target(run) is not None or not run.summary["private"]:
            by_point.setdefault(_key(run), []).append(run)
    order = list(NAMES)
    keys = sorted(by_point, key=lambda k: (order.index(k[0]) if k[0] in order else len(order), *k[:2], k[3] or 0))
    keys.sort(key=lambda k: k[3] is None)
    return [common | _point(key, by_point[key], t) | {"privacy": privacy, "sharing": sharing} for key in keys]


def _point(key: PointKey, runs: Sequence[Run], t: int) -> dict[str, object]:
    name, P, trust, target = key
    if len(settings := {run.setting for run in runs}) > 1:
        at = "" if target is None else f" at epsilon {target:g}"
        raise LoadError(
            f"{NAMES.get(name, name)}{at} was run with {len(settings)} settings ({', '.join(sorted(settings))}): keep "
            "the folder of one"
        )
    curves = pd.DataFrame([run.curve[1 : t + 1] for run in runs])  # seeds x t
    epsilons = [run.summary["epsilon"][run.summary["accountant"]] for run in runs]
    return {
        "algorithm": name, "P": P, "trust": trust, "target_epsilon": target,
        "epsilon": None if None in epsilons else max(epsilons),
        "z": None if target is None else runs[0].config["privacy"]["z"], "seeds": len(runs),
        "average": curves.mean(axis=1).mean(), "average_se": curves.mean(axis=1).sem(),
        "last": curves.iloc[:, -1].mean(), "last_se": curves.iloc[:, -1].sem(),
    }  # fmt: skip


def _looks(found: pd.DataFrame) -> dict[tuple[str, int, str], Style]:
    looks = {}
    for name, rows in found.groupby("algorithm"):
        forms = sorted(set(zip(rows["P"], rows["trust"], strict=True)))
        for i, (form, look) in enumerate(zip(forms, variants(of_algorithm(str(name)), len(forms)), strict=True)):
            looks[str(name), *form] = stretched(look, i)
    return looks


def _panel(
    title: str, rows: pd.DataFrame, column: str, looks: dict[tuple[str, int, str], Style], x_label: str
) -> PicturePanel:
    private = rows["target_epsilon"].notna()
    series = []
    for part in (rows[~private], rows[private]):
        for form in dict.fromkeys(zip(part["algorithm"], part["P"], part["trust"], strict=True)):
            name, P, trust = form
            same = (part["algorithm"] == name) & (part["P"] == P) & (part["trust"] == trust)
            points = part[same].sort_values("target_epsilon")
            label = NAMES.get(name, name) + (f", P = {P}" if P > 1 else "") + (f", {trust}" if trust else "")
            kind = JOINED
            if points["target_epsilon"].isna().all():
                kind, label = LEVEL, f"{label} ({'not private' if points['epsilon'].isna().all() else 'ε = 0'})"
            x = points["epsilon"].fillna(points["target_epsilon"]).to_numpy(float)
            mean, se = points[column].to_numpy(), points[f"{column}_se"].fillna(0.0).to_numpy()
            series.append(Series(label, looks[form], kind, x, mean, se))
    targets = sorted(rows.loc[private, "target_epsilon"].unique())
    xs = [*targets, *(x for one in series if one.kind == JOINED for x in one.x)]
    axis = XAxis(x_label, min(xs) / 1.25, max(xs) * 1.25, True, targets)
    low, high = (
        float(pick(np.concatenate([one.ends()[k] for one in series]))) for k, pick in ((0, np.min), (1, np.max))
    )
    margin = 0.06 * (high - low) or 0.01
    return PicturePanel(
        title, series, axis, Span(False, max(0.0, low - margin) if low >= 0 else low - margin, high + margin)
    )


def _sends_queries(run: Run) -> bool:
    """Return True if the run's server broadcasts the weights of a function, whose maximiser is a query.

    The result is False for a shared prior. If the result is True, the run depends on the length-scale of the shared
    features.
    """
    return run.config["algorithm"].get("server") in ("Server", "PeerExchange")


def _target(run: Run) -> float | None:
    return run.config["privacy"].get("epsilon") if run.summary["private"] else None


def _key(run: Run) -> PointKey:
    return run.config["algorithm"]["name"], run.config["algorithm"]["P"], trust_in_words(run), _target(run)


def _variant(run: Run) -> tuple[object, ...]:
    """Return a key of the run: the variant of the problem, then the length-scale of the shared features."""
    return *variant(run), run.config["algorithm"].get("lengthscale")
