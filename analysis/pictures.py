"""The pictures of an experiment, with the numbers behind them.

The whole experiment has a single figure if its runs have several target epsilons, or if `local` (no sharing) was run
with several numbers of agents. Otherwise, each problem and metric has a figure of regret against the iteration and, if
runs are private, a figure of regret against epsilon.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from analysis.claims import judge, shown_in
from analysis.drawing import by_epsilon, by_iteration, equal_epsilon, gains, releases
from analysis.drawing.captions import ACCOUNTANT, verdicts
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.evidence.claim import JudgedClaim
from analysis.labels import VARIANTS, value_in_words
from analysis.load import Run, SettingRuns, by_metric, settings


@dataclass(frozen=True)
class Drawn:
    """A picture and its numbers.

    name: the name of its files, without suffix. claims: sentences with the verdicts on claims about it.
    """

    name: str
    figure: Figure
    table: pd.DataFrame
    claims: Sequence[str] = ()


def draw_experiment(
    name: str, runs: Sequence[Run], accountant: str | None = None, style: PageStyle = SCREEN
) -> list[Drawn]:
    """Draw all figures of an experiment.

    If all runs have the same variant of a problem, the same metric and the same number of agents, the figures come with
    verdicts on claims.

    accountant: the accountant whose epsilon is shown for federated runs. The figures of gains and of target epsilons
    ignore this argument. Raises LoadError if the runs lack what a figure needs, such as an epsilon by this accountant.
    """
    with mpl.rc_context(style.rc):  # figures without pyplot need no display and no closing
        federated, by_axis = [run for run in runs if not run.outsourced], by_metric(runs)
        judged = judge({name: runs}) if len(by_axis) == 1 else []
        claims = verdicts(judged)
        if gains.has_gains(federated):
            table = gains.table(federated)
            return [Drawn(f"{name}_gains", gains.figure(table, style), table, claims)]
        if equal_epsilon.has_targets(federated):
            n = len({run.setting for run in runs if run.outsourced})
            aside = f"Not in the picture: {n} outsourced setting{'s' * (n > 1)}." if n else ""
            table = equal_epsilon.table(federated)
            return [Drawn(name, equal_epsilon.figure(table, aside, style), table, claims)]
        tables = [settings(group) for group in by_axis]
        if accountant is not None and len(federated) < len(runs):
            by_epsilon.check_accountant([group for groups in tables for group in groups], accountant)
        drawn: list[Drawn] = []
        for groups in tables:
            prefix = name if len(tables) == 1 else f"{name}_{slug(groups)}"
            if groups[0].first.outsourced:
                drawn += _outsourced(groups, prefix, judged, style)
            else:
                drawn += _federated(groups, prefix, accountant or ACCOUNTANT, claims, style)
        return drawn


def _federated(
    groups: Sequence[SettingRuns], prefix: str, accountant: str, claims: Sequence[str], style: PageStyle
) -> Iterator[Drawn]:
    picture = by_iteration.regret_by_iteration(groups, accountant, style)
    yield Drawn(f"{prefix}_regret_by_iteration", picture, by_iteration.table(groups), claims)
    if any(group.private for group in groups):
        t = min(g.rounds for g in groups)
        picture = by_epsilon.regret_by_epsilon(groups, t, accountant, style)
        yield Drawn(f"{prefix}_regret_by_epsilon", picture, by_epsilon.table(groups, t, accountant), claims)


def _outsourced(
    groups: Sequence[SettingRuns], prefix: str, judged: Sequence[JudgedClaim], style: PageStyle
) -> Iterator[Drawn]:
    t = min(g.rounds for g in groups)
    at_t = releases.table(groups, t)
    pages = [(page, by_iteration.table(groups)) for page in by_iteration.releases_by_iteration(groups, style)]
    if any(g.private or g.first.claimed_epsilon is not None for g in groups):
        pages.append((releases.releases_by_epsilon(groups, t, style), at_t))
    if (by_r := releases.releases_by_columns(groups, t, style)) is not None:
        pages.append((by_r, at_t))
    for page, table in pages:
        claims = verdicts(shown_in(judged, [group.first for group in page.settings]))
        yield Drawn(f"{prefix}_{page.name}", page.figure, table, claims)


def slug(groups: Sequence[SettingRuns]) -> str:
    """Return the part of a file name that distinguishes problems and metrics in one experiment."""
    s = groups[0].first.summary
    problem = groups[0].first.config["problem"]
    variant = [value_in_words(problem[key]) for key in ("score", *VARIANTS) if problem.get(key) is not None]
    return "_".join(map(str, (s["problem"], s["n_agents"], s["metric"], *variant)))
