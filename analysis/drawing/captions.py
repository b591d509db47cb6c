"""The texts of a figure: caption, epsilons in the legend, and verdicts on claims."""

from collections.abc import Sequence

import numpy as np

from analysis.drawing.picture import Span
from analysis.evidence.claim import CONTROL, OWN, PAPER, REIMPLEMENTATION, JudgedClaim
from analysis.evidence.verdicts import CONTRARY, HOLDS, NOT_RUN, OPEN, SAME
from analysis.labels import NAMES, by_algorithm, joined_by_or
from analysis.load import SettingRuns, seeds_phrase
from analysis.tables import stand_ins
from dpfbo.formats.words import epsilon_in_words, large_delta

MOST = 6  # largest number of claims that are listed with a figure
ACCOUNTANT = "pld"
SOURCES = (PAPER, CONTROL, REIMPLEMENTATION, OWN)  # the order of claims
SPENT = 0.02  # an epsilon below the target by at most this share of it is shown as the target


def joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def settings_in_words(groups: Sequence[SettingRuns], accountant: str = ACCOUNTANT) -> str:
    """Return sentences on the settings, their privacy and the error bands."""
    s = groups[0].first.summary
    P = {g.first.config["algorithm"]["P"] for g in groups}
    private = [g for g in groups if g.private]
    parts = [f"N = {s['n_agents']} agents", f"P = {joined_by_or(P)} sub-region{'s' * (max(P) > 1)}"]
    if private:
        parts += [by_algorithm(key, [g.first.config for g in private]) for key in ("q", "S")]
    text = f"{', '.join(parts)}. "
    if private:
        relations = sorted({g.first.summary["relation"] for g in private})
        warning = large_delta(g.first.summary["delta"] for g in private)
        names = dict.fromkeys(accountant_of(g, accountant) for g in private)
        by = " or ".join(accountant_in_words(name) for name in names)
        text += f"ε: {by} accountant, δ = {deltas(groups)}{warning}, {' or '.join(relations)}, user level. "
    return f"{text}{bands_in_words(groups)}"


def bands_in_words(groups: Sequence[SettingRuns]) -> str:
    """Return a sentence on means and error bands, such as `Mean over agents, one seed.`."""
    over = "" if groups[0].first.outsourced else "over agents"
    if max(len(g.runs) for g in groups) == 1:
        return f"Mean {over}, one seed." if over else "One seed."
    both = f"{over} and " if over else "over "
    return f"Mean {both}seeds; bands and bars: ± one standard error over {seeds_phrase(groups)}."


def accountant_of(group: SettingRuns, wanted: str) -> str:
    """Return `wanted` if the setting has an epsilon by this accountant, else the accountant in its summary."""
    return wanted if wanted in group.first.summary["epsilon"] else str(group.first.summary["accountant"])


def accountant_in_words(name: str) -> str:
    """Return the name of an accountant in words, such as `PLD` or `fixed-size`."""
    return name.upper() if len(name) == 3 else name.replace("_", "-")


def with_epsilon(label: str, group: SettingRuns, epsilon: float | None, wanted: str = ACCOUNTANT) -> str:
    """Return a legend entry such as `DP-FTS, z = 1 (ε = 7.05)`; labels of settings without privacy are unchanged.

    wanted: the preferred accountant. epsilon: the setting's epsilon by `wanted`; None if not finite. If the runs did
    not record an epsilon by `wanted`, pass the epsilon by the accountant that the setting was run with; the entry then
    names this accountant. The label of a setting with a target epsilon already states the target. Such a label is
    unchanged if `epsilon` is 98 % to 100 % of the target, and the accountant of the runs is `wanted`.
    """
    if not group.private:
        return label
    if epsilon is None:
        return f"{label} (no finite ε)"
    number = epsilon_in_words(epsilon)
    name, target = accountant_of(group, wanted), group.first.config["privacy"].get("epsilon")
    if name != wanted:
        return f"{label} (ε = {number}, {accountant_in_words(name)} accountant, {group.first.summary['relation']})"
    if target is None:
        return f"{label} (ε = {number})"
    if name != group.first.summary["accountant"]:  # the target is by the setting's own accountant
        return f"{label} ({accountant_in_words(name)}: {number})"
    is_target = (1 - SPENT) * target <= epsilon <= target * (1 + 1e-9)
    return label if is_target else f"{label} (spent: {number})"


def release_in_words(groups: Sequence[SettingRuns]) -> str:
    """Return sentences on the rounds, data, privacy and error bands of runs by a curator and a modeler.

    The sentences on privacy state delta, and for guaranteed epsilons also the neighbouring relation.
    """
    parts = [f"One curator, one modeler, T = {joined_by_or({g.rounds for g in groups})} rounds after the first point."]
    parts += [f"Data: {text}." for text in stand_ins(groups)]
    claimed = [g for g in groups if g.first.claimed_epsilon is not None]
    if claimed:
        delta = joined_by_or({g.first.config["transform"]["delta"] for g in claimed})
        parts.append(f"Dashed: claimed ε as published (δ = {delta}), no guarantee.")
    guaranteed = [g for g in groups if g.private]
    if guaranteed:
        relations = {g.first.summary["relation"]: NAMES.get(g.first.summary["algorithm"], "") for g in guaranteed}
        neighbours = " or ".join(f"{relation} ({name})" for relation, name in relations.items())
        warning = large_delta(g.first.summary["delta"] for g in guaranteed)
        parts.append(f"Guaranteed ε at δ = {deltas(groups)}{warning} for neighbours with {neighbours}.")
    return " ".join([*parts, bands_in_words(groups)])


def deltas(groups: Sequence[SettingRuns]) -> str:
    return joined_by_or(g.first.summary["delta"] for g in groups if g.private) or "–"


def cut_off(groups: Sequence[SettingRuns], shown: Span) -> str:
    """Return a sentence that says which of the first rounds are outside the picture.

    An example is `Rounds 0 to 7 of some lines are above the picture.` The text is empty if the value of every line
    at round 0 is within `shown`, the range of the vertical axis.
    """
    means = [g.curve()["mean"].to_numpy() for g in groups]
    for side, outside in (("above", [m > shown.high for m in means]), ("below", [m < shown.low for m in means])):
        counts = [int(out.size if out.all() else out.argmin()) for out in outside]  # leading rounds outside
        if most := max(counts):
            rounds = "Round 0" if most == 1 else f"Rounds 0 to {most - 1}"
            lines = "the lines" if min(counts) == most else "some lines"
            return f"{rounds} of {lines} {'is' if most == 1 else 'are'} {side} the picture."
    return ""


def equal_runs(groups: Sequence[SettingRuns]) -> str:
    """Return a sentence on settings whose runs have the same seeds and the same curves; empty if there are none."""
    by_runs: dict[tuple[tuple[int, tuple[float, ...]], ...], list[str]] = {}
    for group in groups:
        by_runs.setdefault(tuple((run.seed, tuple(run.curve)) for run in group.runs), []).append(group.label)
    same = [_together(labels) for labels in by_runs.values() if len(labels) > 1]
    return f"Identical runs, seed by seed: {'; '.join(same)}." if same else ""


def _together(labels: Sequence[str]) -> str:
    parts = [label.rpartition(" = ") for label in labels]
    if len({before for before, _, _ in parts}) > 1:
        return " and ".join(labels)
    return f"{parts[0][0]} = {' / '.join(number for _, _, number in parts)}"


def zeros(groups: Sequence[SettingRuns], logarithmic: bool, t: int | None = None) -> str:
    """Return a sentence on the settings that a logarithmic axis cannot show, as their regret is 0 after round t.

    Returns an empty text if there are none, or if the axis is not logarithmic. t: None for the last round.
    """
    names = []
    for group in groups if logarithmic else ():
        above = np.flatnonzero(group.curve()["mean"].to_numpy() > 0)
        first = int(above[-1]) + 1 if above.size else 0
        if first <= (group.rounds if t is None else t):
            names.append(group.label if t is not None else f"{group.label} from t = {first}")
    return f"Not on this axis: {'; '.join(names)} (regret 0)." if names else ""


def left_out(labels: Sequence[str]) -> str:
    return f"Not in the picture: {'; '.join(labels)}." if labels else ""


def verdicts(findings: Sequence[JudgedClaim]) -> list[str]:
    """Return a line for each of up to 6 decided claims, and a last line that counts the claims without such a line.

    The last line counts undecided claims, decided claims beyond the sixth, and confirmed claims about an epsilon.
    Repeated claims and claims that were not run are left out. Claims of the paper come before claims from other
    sources. A line reads `FTS beats TS; mean regret over rounds 1 to 40: holds (5.1 standard errors, 20 functions).`
    """
    ids = {f.id for f in findings}
    known = [f for f in findings if f.verdict != NOT_RUN and f.repeats not in ids]
    decided = [f for f in known if f.verdict in (CONTRARY, SAME) or (f.verdict == HOLDS and f.kind != "epsilon")]
    told = sorted(decided, key=lambda f: (SOURCES.index(f.source), f.verdict != CONTRARY))[:MOST]
    lines = []
    for f in told:
        source = "" if f.source == "paper" else f" ({f.source})"
        errors = [] if f.standard_errors is None else [f"{f.standard_errors:.1f} standard errors".replace("-", "−")]
        lines.append(f"{f.claim}{source}: {f.in_words} ({', '.join([*errors, f.units])}).")
    rest = [f.verdict for f in known if f not in told]
    counts = {verdict: rest.count(verdict) for verdict in (HOLDS, CONTRARY, SAME, OPEN)}
    others = ", ".join(f"{n} × {verdict}" for verdict, n in counts.items() if n)
    return lines + [f"{'Others' if lines else 'Claims'} about these settings: {others}."] * bool(others)
