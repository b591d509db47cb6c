"""Print the output of a run on the terminal."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dpfbo.formats.words import delta_in_words, epsilon_in_words, neighbours, objective_in_words

if TYPE_CHECKING:
    from dpfbo.run_result import Round


_OFTEN = 0.5  # fraction of clipped messages above which advice is printed
_SEEDED = "; simulation: a known seed voids it"
_SHOWN = 3  # number of agents whose best queries are printed after the table


class RoundProgress:
    """Shows the round, mean metric and epsilon so far: as a progress bar, or in plain lines without a terminal.

    epsilon: the value to show until the first release; None stands for infinity.
    """

    def __init__(self, title: str, rounds: int, metric: str, enabled: bool = True, epsilon: float | None = 0.0) -> None:
        self._console = Console(stderr=True)
        self._live = enabled and self._console.is_terminal
        self._plain = enabled and not self._live
        self._metric, self._rounds, self._title = metric, rounds, title
        self._epsilon = math.inf if epsilon is None else epsilon
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=10),
            TextColumn("round {task.completed}/{task.total}  {task.fields[status]}"), TimeRemainingColumn(),
            console=self._console, disable=not self._live,
        )  # fmt: skip
        self._task = self._bar.add_task(title, total=rounds, status="")

    def __enter__(self) -> RoundProgress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def __call__(self, done: Round) -> None:
        if done.server is not None:
            self._epsilon = done.server.epsilon
        epsilon = f"{self._epsilon:.3g}" if math.isfinite(self._epsilon) else "none"
        status = f"{self._metric} {done.agents.mean:.4f}  epsilon {epsilon}"
        self._bar.update(self._task, completed=done.agents.round, status=status)
        if self._plain and done.agents.round % max(1, self._rounds // 6) == 0:
            self._console.print(f"{self._title}: round {done.agents.round}/{self._rounds}  {status}", highlight=False)


def print_summary(summary: dict[str, Any], folder: object) -> None:
    """Print a finished run's epsilon, best queries and times, and its metric after some of the rounds."""
    T, curve = summary["rounds"], summary["curve"]
    outsourced = "published_claim" in summary  # without agents there is no standard error over them
    table = Table("round", summary["metric"])
    for t in sorted({0, T // 4, T // 2, 3 * T // 4, T}):
        mean, se = curve["mean"][t], curve["se"][t]
        error = "" if outsourced or se is None else f" ± {se:.4f}"
        table.add_row(str(t), "no value yet" if mean is None else f"{mean:.4f}{error}")
    say = Console(highlight=False).print
    say(f"{summary['problem']} · {summary['algorithm']} · seed {summary['seed']}")
    say(table)
    agents = f"{summary['n_agents']} agents, mean ± standard error over agents"
    say("one curator, one modeler" if outsourced else agents)
    if spread := summary["final"].get("quantiles"):
        shown = ", ".join(f"{percent} % {value:.4g}" for percent, value in spread.items())
        say(f"quantiles of the agents at the end: {shown}")
    if summary.get("stand_in"):
        say(f"data: {summary['stand_in']}")
    say(epsilon_sentence(summary))
    clipped = summary.get("clip_fraction")  # known only in a simulation
    if clipped is not None and summary["private"] and not outsourced:
        often = clipped > _OFTEN and not summary.get("normalized")
        advice = ": privacy.S is too small for them, or the objective's scale too large" if often else ""
        say(f"clipped {clipped:.1%} of the chosen messages{advice}")
    from runners.record.best_found import best_in_words  # imported here, so that say_error needs no pyarrow

    best = (not outsourced and summary.get("best")) or []
    for one in best[:_SHOWN]:
        say(f"best of {best_in_words(one, objective_in_words(summary['metric']))}")
    if len(best) > _SHOWN:
        say(f"best of the other {len(best) - _SHOWN} agents: python -m runners.best {folder}", soft_wrap=True)
    if (executor := summary["executor"]).get("faster_local"):
        needed, took = executor["agents_cpu_seconds"], executor["seconds"]
        compared = f"one core does the agents' steps in {needed:.1f} s, the rounds took {took:.1f} s"
        say(f"executor=local would be faster: {compared}")
    say("seconds: " + ", ".join(f"{phase} {s:.2f}" for phase, s in summary["seconds"].items()))
    say(f"results: {folder}", soft_wrap=True)


def epsilon_sentence(summary: dict[str, Any]) -> str:
    """Return epsilon by every accountant in one sentence, with delta, relation and the number of broadcasts."""
    values = summary["epsilon"]
    if "published_claim" in summary:
        return _epsilon_of_release(summary)
    if summary["n_charges"] == 0 and None not in values.values():
        return "epsilon 0: nothing is sent or released"
    rough = dict.fromkeys(summary["approximations"], " (an approximation, no guarantee)")
    shown = ", ".join(f"{name} {epsilon_in_words(v)}{rough.get(name, '')}" for name, v in values.items())
    seeded = _SEEDED if summary["private"] and summary["rng"] == "seeded" else ""
    return f"epsilon: {shown} ({_at(summary)}, {summary['n_charges']} broadcasts{seeded})"


def _epsilon_of_release(summary: dict[str, Any]) -> str:
    value, limits = summary["epsilon"][summary["accountant"]], "the measurements are not covered"
    if summary["published_claim"] is not None:
        return f"epsilon: none; {summary['published_claim']}; {limits}"
    if summary["n_charges"] == 0:
        return f"epsilon 0: nothing is released; {limits}"
    if value is None:
        return "epsilon: none, the rows are released as they are"
    seeded = _SEEDED if summary["rng"] == "seeded" else ""
    charges = f"{summary['n_charges']} release{'s' * (summary['n_charges'] > 1)}"
    return f"epsilon: {value:.4g} ({_at(summary)}, {charges}, {summary['accountant']}{seeded}); {limits}"


def _at(summary: dict[str, Any]) -> str:
    return f"{delta_in_words(summary['delta'])}, {neighbours(summary['relation'])}"


def say_error(message: str) -> None:
    """Print one sentence on standard error."""
    print(f"error: {' '.join(str(message).split())}", file=sys.stderr)


def end(message: str, code: int) -> NoReturn:
    """Print one sentence on standard error and exit."""
    say_error(message)
    sys.exit(code)
