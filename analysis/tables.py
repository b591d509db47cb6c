"""python -m analysis.tables NAME: a table of regret and epsilon by setting."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.arguments import exit_code, parsed
from analysis.labels import problem_label, variant_in_words
from analysis.load import LoadError, SettingRuns, by_metric, load, seeds_phrase, settings
from dpfbo.formats.words import epsilon_in_words, large_delta, metric_in_words

ROUNDS = (5, 20, 40)  # shown by default, as is the last round T
NUMBER_WIDTH, NAME_WIDTH = 8, 18  # least widths of the columns, in characters
WIDTH = 120  # least characters in a line if the output is no terminal


def rows(groups: Sequence[SettingRuns], rounds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the rows of the table; None stands for a missing round or no finite epsilon."""
    return [
        {
            "label": g.label,
            "setting": g.first.setting,
            **{key: g.first.summary[key] for key in ("problem", "metric", "n_agents", "rounds", "private")},
            "seeds": [run.seed for run in g.runs],
            "regret": {
                str(t): None if t > g.rounds else dict(zip(("mean", "se"), g.at(t), strict=True)) for t in rounds
            },
            "se_over": "seeds",
            "epsilon": {name: g.epsilon(name) for name in g.first.summary["epsilon"]},
            **{key: g.first.summary[key] for key in ("delta", "relation", "epsilon_covers")},
            **({"published_claim": g.first.summary["published_claim"]} if g.first.outsourced else {}),
        }
        for g in groups
    ]  # fmt: skip


def default_rounds(groups: Sequence[SettingRuns]) -> list[int]:
    """Return rounds 5, 20, 40 and T if every setting has at least 40 rounds, else T / 8, T / 2 and T."""
    T = max(g.rounds for g in groups)
    if min(g.rounds for g in groups) >= ROUNDS[-1]:
        return sorted({*ROUNDS, T})
    return sorted({max(1, T // 8), max(1, T // 2), T})


def table(groups: Sequence[SettingRuns], rounds: Sequence[int]) -> Table:
    """Return the table of settings that share a metric."""
    s = groups[0].first.summary
    better = "lower is better" if s["lower_is_better"] else "higher is better"
    problem = problem_label(s["problem"]) if groups[0].first.outsourced else s["problem"]
    problem += variant_in_words(groups[0].first.config["problem"])
    of = f"{metric_in_words(s['metric'])} ({better}) on {problem}, {participants(groups)}"
    title = Text(f"{s['experiment']}: {of}")
    result = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    names = accountants(groups)
    result.add_column("setting", overflow="fold", min_width=NAME_WIDTH)
    for t in rounds:
        result.add_column(f"t = {t}", min_width=NUMBER_WIDTH)
    result.add_column(Text(f"ε {' / '.join(names.values())}"), no_wrap=True)
    for g in groups:
        result.add_row(Text(g.label), *(with_error(g, t) for t in rounds), Text(epsilons_in_words(g, names)))
    return result


def participants(groups: Sequence[SettingRuns]) -> str:
    """Return the participants in words, such as `200 agents`."""
    first = groups[0].first
    return "one curator and one modeler" if first.outsourced else f"{first.summary['n_agents']} agents"


def no_guarantees(groups: Sequence[SettingRuns]) -> list[str]:
    """Return the distinct reasons why claimed epsilons are no guarantee."""
    said = [g.first.summary["published_claim"] for g in groups if g.first.claimed_epsilon is not None]
    return list(dict.fromkeys(text.partition("; ")[2] or text for text in said))


def caption(groups: Sequence[SettingRuns]) -> list[str]:
    """Return the lines below the table; they explain the standard errors, epsilon and the data."""
    several, outsourced = max(len(g.runs) for g in groups) > 1, groups[0].first.outsourced
    lines = [f"{'mean ± standard error over' if several else 'mean of'} {seeds_phrase(groups)}"]
    guaranteed = [g for g in groups if g.private]
    related = guaranteed if outsourced else groups
    if related:
        known = {g.first.summary["delta"] for g in related}
        deltas = ", ".join(f"{delta:.3g}" for delta in sorted(known)) + large_delta(known)
        relations = " or ".join(sorted({g.first.summary["relation"] for g in related}))
        level = "" if outsourced else ", user level"
        covers = related[0].first.summary["epsilon_covers"]
        seeded = any(g.first.summary["rng"] == "seeded" for g in guaranteed)
        void = "; simulation: a known seed voids it" if seeded else ""
        lines.append(f"ε at δ = {deltas}, relation {relations}{level}; it covers {covers}{void}")
    lines += [f"claimed ε: published, {reason}" for reason in no_guarantees(groups)]
    return lines + [f"data: {text}" for text in stand_ins(groups)]


def stand_ins(groups: Sequence[SettingRuns]) -> list[str]:
    """Return a sentence for each data set that replaces one of the paper's."""
    said = (g.first.summary.get("stand_in") for g in groups)
    return list(dict.fromkeys(text for text in said if text))


def accountants(groups: Sequence[SettingRuns]) -> dict[str, str]:
    """Return a heading for each accountant, such as `gdp (≈)` for an approximate one."""
    rough = {name for g in groups for name in g.first.summary.get("approximations", [])}
    return {name: name + " (≈)" * (name in rough) for g in groups for name in g.first.summary["epsilon"]}


def epsilons_in_words(group: SettingRuns, names: Iterable[str]) -> str:
    """Return epsilon by each accountant, separated by ` / `; a dash stands for an accountant that does not apply.

    If epsilon is 0, is not finite, or is claimed without a guarantee, the text is a phrase such as `none (no noise)`.
    """
    known = group.first.summary["epsilon"]
    values = [group.epsilon(name) for name in known]
    if (claimed := group.first.claimed_epsilon) is not None:
        return f"claimed {claimed:.2f}, no guarantee"
    if all(v is None for v in values):
        return "none (no noise)" if group.private else "none (not private)"
    if group.first.summary["n_charges"] == 0:
        return f"0 (nothing {'released' if group.first.outsourced else 'shared'})"
    shown = {name: epsilon_in_words(v) for name, v in zip(known, values, strict=True)}
    return " / ".join(shown.get(name, "–") for name in names)


def with_error(group: SettingRuns, t: int) -> str:
    """Return mean and standard error after round t as `0.1234 ± 0.0012`; if there is no round t, return `–`."""
    if t > group.rounds:
        return "–"
    mean, se = group.at(t)
    return f"{mean:.4f}" + ("" if se is None else f" ± {se:.4f}")


def _rounds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"rounds must be numbers such as 5,20,40, got {text!r}") from error


@exit_code
def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 if there is nothing to show, else 0."""
    parser = argparse.ArgumentParser(prog="python -m analysis.tables", description="Regret and epsilon by setting.")
    parser.add_argument("names", metavar="NAME", nargs="+", help="experiment: a folder in the results folder")
    parser.add_argument(
        "--rounds", type=_rounds, help="rounds to show, such as 5,20,40 (the default if all settings have them)"
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    args = parsed(parser, argv)
    found = [(n, settings(runs)) for n in args.names for runs in by_metric(load(args.results_dir, n))]
    shown = [(name, groups, args.rounds or default_rounds(groups)) for name, groups in found]
    for name, groups, rounds in shown:
        T = max(g.rounds for g in groups)
        if wrong := [t for t in rounds if not 0 <= t <= T]:
            raise LoadError(f"round {wrong[0]} is not in the results of {name}: 0 to {T} are")
    if args.json:
        print(json.dumps([row for _, groups, rounds in shown for row in rows(groups, rounds)], indent=2))
        return 0
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(WIDTH, console.width))
    for name, groups, rounds in shown:
        if len(args.names) > 1:
            console.print(name, highlight=False, markup=False)
        console.print(table(groups, rounds))
        for line in caption(groups):
            console.print(line, highlight=False, markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
