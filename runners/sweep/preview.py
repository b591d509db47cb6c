"""Report the trials of a sweep and their predicted epsilon before it runs (`--dry-run`)."""

from typing import Any

from rich.console import Group
from rich.table import Table

from dpfbo.formats.words import epsilon_in_words, large_delta, neighbours
from runners.sweep.plan import PlannedSetting, SweepPlan
from runners.sweep.progress_table import MOST_ROWS
from runners.sweep.trials import States, seeds_in_words


def report(sweep: SweepPlan, states: States) -> Group:
    """Return a table with the predicted epsilon of each setting, followed by the total number of trials to run."""
    accountants = list(dict.fromkeys(name for setting in sweep.settings for name in setting.epsilon))
    rough = {name for setting in sweep.settings for name in setting.approximations}
    table = Table()
    for name in ("setting", "seeds"):
        table.add_column(name, overflow="fold", min_width=12)
    for name in ("T", *(f"epsilon\n{name}{' (≈)' * (name in rough)}" for name in accountants), "delta"):
        table.add_column(name, justify="right", no_wrap=True)
    for setting in sweep.settings[:MOST_ROWS]:
        known = setting.epsilon
        epsilons = [epsilon_in_words(known[name]) if name in known else "–" for name in accountants]
        cells = (setting.label, _seeds_by_state(sweep, setting, states), str(setting.rounds))
        table.add_row(*cells, *epsilons, f"{setting.delta:.3g}")
    if len(sweep.settings) > MOST_ROWS:
        table.caption = f"and {len(sweep.settings) - MOST_ROWS} more settings; --json has all"
    relations = " or ".join(dict.fromkeys(neighbours(s.relation) for s in sweep.settings if s.relation)) or "none"
    large = large_delta(setting.delta for setting in sweep.settings)
    search = sweep.options.search
    more = f"; the search goes on to {search.num_samples} settings, {search.batch} at a time" if search else ""
    to_run = sum(sweep.options.is_to_run(state) for state in states.values())
    return Group(
        table,
        f"epsilon: predicted for one run of T rounds, {relations}, at delta{large}; epsilons of several runs add up",
        f"{len(sweep.settings)} settings x {len(sweep.seeds)} seeds = {len(states)} trials, {to_run} to run{more}",
    )


def _seeds_by_state(sweep: SweepPlan, setting: PlannedSetting, states: States) -> str:
    """Return the seeds of a setting by state, such as `0..2 done`, one state a line."""
    failed = "failed, to run again" if sweep.options.retry_failed else "failed, skipped"
    words = {"done": "done", "running": "running elsewhere", "waiting": "to run", "failed": failed}
    seeds: dict[str, list[int]] = {}
    for seed in sweep.seeds:
        known = states[setting.trial(seed).key]
        stays = known.stopped_by is not None and not sweep.options.is_to_run(known)
        goes_on = f"stopped early after round {known.round}" if stays else f"resumes after round {known.round}"
        seeds.setdefault(words.get(known.phase, goes_on), []).append(seed)
    return "\n".join(f"{seeds_in_words(some)} {said}" for said, some in seeds.items())


def as_json(sweep: SweepPlan, states: States) -> dict[str, Any]:
    """Return the trials with their states and predicted epsilon."""
    trials = [
        {
            "label": trial.label, "overrides": trial.overrides, "setting": trial.setting, "seed": trial.seed,
            "rounds": trial.rounds, "metric": trial.metric, "to_run": sweep.options.is_to_run(states[trial.key]),
            **states[trial.key].as_json(),
            "predicted": {
                "epsilon": setting.epsilon, "delta": setting.delta, "relation": setting.relation,
                "approximations": setting.approximations,
            },
        }
        for setting, trial in sweep.trials
    ]  # fmt: skip
    return {"experiment": sweep.experiment, "results": str(sweep.folder), "trials": trials}
