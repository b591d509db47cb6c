"""The table of a sweep on the terminal: a row for each setting, with progress and results."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import fmean, stdev

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dpfbo.formats.words import METHODS, delta_in_words, epsilon_in_words, neighbours
from runners.sweep.trials import PHASES, Phase, States, Trial, TrialState

MOST_ROWS, MOST_FAILURES = 60, 20  # most rows of the tables of settings and of failed trials

_UNDER_WAY: tuple[Phase, ...] = ("running", "interrupted")


@dataclass(frozen=True)
class Row:
    """One setting and the states of its seeds."""

    trials: tuple[Trial, ...]
    states: tuple[TrialState, ...]

    def of(self, phase: Phase) -> list[TrialState]:
        return [state for state in self.states if state.phase == phase]

    def mean(self) -> str:
        """Return the mean metric ± its standard error over the finished seeds.

        If no seed has finished, return the mean so far in parentheses.
        """
        done = self.of("done")
        values = [state.mean for state in done or self.states if state.mean is not None]
        if not values or not done:
            return f"({fmean(values):.4f})" if values else ""
        error = f" ± {stdev(values) / math.sqrt(len(values)):.4f}" if len(values) > 1 else ""
        return f"{fmean(values):.4f}{error}"

    def spread(self) -> str:
        """Return the final metric's quantiles over agents, averaged over the finished seeds; empty for few agents."""
        known = [state.quantiles for state in self.of("done") if state.quantiles]
        if not known or any(known[0].keys() != other.keys() for other in known):
            return ""
        return "  ".join(f"{fmean(q[percent] for q in known):.3g}" for percent in known[0])

    def epsilon(self) -> str:
        """Return the largest epsilon of the finished seeds; if none has finished, the largest so far in parentheses."""
        done = self.of("done")
        known = [state.epsilon for state in done or self.states if state.epsilon is not None]
        words = epsilon_in_words(max(known)) if known else ""
        return words if done or not words else f"({words})"

    def at_round(self) -> str:
        """Return the rounds that running and interrupted seeds have reached.

        `12, 30 / 40` means that two seeds have reached rounds 12 and 30 of 40. `5: 12..30 / 40` means that five seeds
        have reached rounds between 12 and 30.
        """
        lines = []
        for phase in _UNDER_WAY:
            at = sorted(state.round or 0 for state in self.of(phase))
            shown = ", ".join(map(str, at)) if len(at) <= 2 else f"{len(at)}: {at[0]}..{at[-1]}"
            if at:
                early = any(state.stopped_by for state in self.of(phase))
                word = " stopped early" if early else " stopped" if phase == "interrupted" else ""
                lines.append(f"{shown} / {self.trials[0].rounds or '?'}{word}")
        return "\n".join(lines)


def _ended(state: TrialState) -> bool:
    return state.phase in ("done", "failed") or state.stopped_by is not None


def rows(trials: Sequence[Trial], states: States) -> list[Row]:
    """Group the trials into rows by setting and number of rounds, in the order of their first trials."""
    by_setting: dict[tuple[str, int | None], list[Trial]] = {}
    for trial in trials:
        by_setting.setdefault((trial.setting, trial.rounds), []).append(trial)
    return [Row(tuple(group), tuple(states[trial.key] for trial in group)) for group in by_setting.values()]


def table(rows: Sequence[Row]) -> Table:
    """Return a table with a row for each of the first `MOST_ROWS` settings."""
    metrics = {row.trials[0].metric for row in rows if row.trials[0].metric}
    phases = {state.phase for row in rows for state in row.states}
    spread = next((s.quantiles for row in rows for s in row.states if s.quantiles), None)
    columns = {
        "done": lambda row: f"{len(row.of('done'))}/{len(row.states)}",
        "at round": Row.at_round if phases.intersection(_UNDER_WAY) else None,
        "failed": (lambda row: str(len(row.of("failed")) or "")) if "failed" in phases else None,
        f"{metrics.pop() if len(metrics) == 1 else 'metric'}\n± SE": Row.mean,
        f"of the agents\n{', '.join(spread or ())} %": Row.spread if spread else None,
        "epsilon": Row.epsilon,
    }
    shown = {name: cell for name, cell in columns.items() if cell is not None}
    result = Table()
    result.add_column("setting", overflow="fold", min_width=12)
    for name in shown:
        result.add_column(name, justify="right", style="red" if name == "failed" else None)
    for row in rows[:MOST_ROWS]:
        result.add_row(row.trials[0].label, *(cell(row) for cell in shown.values()))
    if len(rows) > MOST_ROWS:
        result.caption = f"and {len(rows) - MOST_ROWS} more settings; --json has all"
    return result


def footnote(rows: Sequence[Row]) -> str:
    """Return a line that explains the numbers in the table."""
    known = {
        (METHODS.get(s.accountant, s.accountant), s.relation, delta_in_words(s.delta))
        for row in rows
        for s in row.states
        if s.accountant and s.relation and s.delta
    }
    by = " or ".join(f"{name} at {delta}, {neighbours(relation)}" for name, relation, delta in sorted(known))
    some = f"; epsilon of one run by {by}" if by else ""
    so_far = "; in brackets: value while no seed is finished" if any(row.mean().startswith("(") for row in rows) else ""
    early = any(state.stopped_by for row in rows for state in row.states)
    chosen = "; a setting with trials stopped early looks better than it is, since its poor seeds are missing" * early
    return f"mean of the finished seeds ± standard error over the seeds{some}{so_far}{chosen}"


def counts(states: States) -> str:
    """Return the number of trials in each state, such as `12 of 24 done, 2 running, 1 failed`."""
    n = Counter("stopped early" if state.stopped_by is not None else state.phase for state in states.values())
    rest = [f"{n[phase]} {phase}" for phase in (*PHASES[1:], "stopped early") if n[phase]]
    if preempted := sum(state.preemptions for state in states.values()):
        rest.append(f"{preempted} preemption{'s' * (preempted > 1)}, after which trials went on")
    return ", ".join([f"{n['done']} of {n.total()} done", *rest])


def failures(trials: Sequence[Trial], states: States) -> Table | None:
    """Return a table of the first `MOST_FAILURES` failed trials with their errors; None if no trial failed."""
    failed = [trial for trial in trials if states[trial.key].phase == "failed"]
    result = Table()
    for name in ("failed", "seed", "error"):
        result.add_column(name, overflow="fold")
    for trial in failed[:MOST_FAILURES]:
        result.add_row(trial.label, str(trial.seed), Text(states[trial.key].error or ""))
    if len(failed) > MOST_FAILURES:
        result.caption = f"and {len(failed) - MOST_FAILURES} more; --json has all"
    return result if failed else None


def report(trials: Sequence[Trial], states: States) -> Group:
    """Return the table of settings with its footnote, and the failed trials."""
    shown, failed = rows(trials, states), failures(trials, states)
    return Group(table(shown), Text(footnote(shown)), *([] if failed is None else [failed]))


class ProgressTable:
    """The states of a sweep's trials while it runs: a live table, or a line for each trial that ends."""

    def __init__(self, trials: Sequence[Trial], states: States, console: Console) -> None:
        self.trials, self.states, self._console = list(trials), dict(states), console
        self._ended = sum(map(_ended, states.values()))
        columns = (BarColumn(60), TimeElapsedColumn(), TextColumn("elapsed, left"), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, speed_estimate_period=3600.0)
        self._task = self._bar.add_task("", total=sum(trial.rounds or 1 for trial in trials))
        self._bar.reset(self._task, completed=self._rounds_done())

    def update(self, trial: Trial, state: TrialState) -> None:
        """Record a trial's state; if the console shows no live table, print a line when the trial has ended."""
        self._ended += _ended(state) - _ended(self.states[trial.key])
        self.states[trial.key] = state
        if _ended(state) and not self._console.is_terminal:
            reached = f"{trial.metric} {state.mean or 0:.4f}"
            what = f"{reached}, epsilon {epsilon_in_words(state.epsilon)}" if state.phase == "done" else ""
            what = what or (f"{reached}, stopped early after round {state.round}" if state.stopped_by else "")
            what = what or f"failed: {state.error}"
            line = f"{self._ended}/{len(self.trials)} {trial.label}, seed {trial.seed}: {what}{self._left()}"
            self._console.print(Text(line), soft_wrap=True)

    def _left(self) -> str:
        self._bar.update(self._task, completed=self._rounds_done())
        seconds = self._bar.tasks[0].time_remaining
        return f"; about {timedelta(seconds=round(seconds))} left" if seconds else ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = rows(self.trials, self.states)
        self._bar.update(self._task, completed=self._rounds_done())
        yield Text(counts(self.states))
        yield self._bar.get_renderable()
        if len(shown) > console.height - 10:  # the terminal cuts off the last rows, so running settings come first
            shown.sort(key=lambda row: not row.of("running"))
        yield table(shown)
        yield Text(footnote(shown), style="dim")

    def _rounds_done(self) -> int:
        """Return the number of finished rounds; a failed or stopped trial counts as if it had finished all rounds."""
        states = ((trial, self.states[trial.key]) for trial in self.trials)
        return sum((trial.rounds or 1) if _ended(state) else (state.round or 0) for trial, state in states)
