"""The W&B run that sums up an experiment: a table of its settings, a picture of its frontier, and its claims.

It has one id: logged again as trials are added, it replaces what it said. Runners never import `analysis`, so the
claims come from a file that it writes (`python -m analysis.claims NAME --keep`). Settings whose data are real have
their epsilon in the table and no metric; then there are no claims, which quote metrics.
"""

import json
import logging
import tempfile
import textwrap
import uuid
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from dpfbo.formats.files import replace_file
from dpfbo.formats.words import delta_in_symbols, metric_in_words, neighbours
from runners.record.look import DECADE, DPI, LOOK
from runners.record.run_folder import read_object
from runners.wandb import attempts, layout
from runners.wandb.finished_runs import RunOnDisk, SettingResult, results_of, settings_table
from runners.wandb.tracker import open_run, table

CLAIMS_FILE, NOTE = "claims.json", "sweep.json"  # in the experiment's folder, in its folder `wandb`
MOST_NAMED = 12  # settings with a name in the legend of the picture
MOST_BANDS = 30  # settings whose standard error is drawn as a band

logger = logging.getLogger(__name__)


def log_summary(experiment: Path, runs: Sequence[RunOnDisk], mode: str, again: bool = False) -> bool:
    """Log the summary of an experiment's finished runs; returns False if it has not changed (unless `again`) or failed.

    A damaged file or a failure of W&B is a warning.
    """
    if mode == "disabled" or not runs:
        return False
    try:
        results = results_of(runs)
        rows = settings_table(results)
        claims = _claims(experiment) if all(result.shown for result in results) else []  # they quote metrics
        digest = sha256(json.dumps([rows, claims, mode]).encode()).hexdigest()
        known = read_object(experiment / "wandb" / NOTE) or {}  # the last one's id, and a digest of what it shows
        if known.get("digest") == digest and not again:
            return False
        id = known.get("id") or "sweep" + uuid.uuid4().hex[:11]
        _log(experiment, id, mode, results, rows, claims)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # W&B also leaves through SystemExit
        logger.warning("W&B has no summary of %s: %s", experiment.name, " ".join(repr(error).split())[:240])
        return False
    note = json.dumps({"id": id, "digest": digest}).encode()
    replace_file(experiment / "wandb" / NOTE, lambda f: f.write(note), durable=False)
    return True


def _log(
    experiment: Path, id: str, mode: str, results: Sequence[SettingResult], rows: Sequence[dict[str, Any]],
    claims: Sequence[dict[str, Any]],
) -> None:  # fmt: skip
    import wandb

    (experiment / "wandb").mkdir(exist_ok=True)
    earlier = attempts.not_uploaded(experiment, id)
    runs = [run for result in results for run in result.runs]
    settings = runs[0].config["tracker"]["wandb"]
    config = {
        "experiment": experiment.name, "method": None, "setting": None, "label": None, "n_settings": len(results),
        "seeds": sorted({run.summary["seed"] for run in runs}), "n_runs": len(runs),
    }  # fmt: skip
    tag = "simulation" if all(result.shown for result in results) else "released"
    run = open_run(
        mode, experiment, id=id, project=settings["project"], entity=settings["entity"], config=config,
        name=f"{experiment.name}: summary", group=experiment.name, job_type="sweep", tags=["summary", tag],
    )  # fmt: skip
    attempts.delete(earlier)
    kinds: dict[str, list[SettingResult]] = {}  # a picture has one problem and one metric
    for result in results:
        if result.shown:
            kinds.setdefault(f"{result.summary['problem']}-{result.summary['metric']}", []).append(result)
    try:
        row: dict[str, Any] = {layout.SETTINGS: table(rows), **({layout.CLAIMS: table(claims)} if claims else {})}
        with tempfile.TemporaryDirectory() as folder:
            for number, (kind, group) in enumerate(kinds.items()):
                name = layout.FRONTIER if len(kinds) == 1 else f"{layout.FRONTIER}/{kind}"
                row[name] = wandb.Image(str(draw(group, Path(folder) / f"{number}.png")))
            run.log(row)
    finally:
        run.finish(exit_code=0)


def draw(results: Sequence[SettingResult], path: Path) -> Path:
    """Write a PNG: the metric of one problem against the round, and its final value against epsilon, with errors."""
    from matplotlib import colormaps, rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    n, summary = len(results), results[0].summary
    with rc_context(LOOK):
        figure = Figure(figsize=(11.0, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for number, result in enumerate(results):
            colour = colormaps["tab10"](number) if n <= 10 else colormaps["viridis"](number / n)
            mean, error, marker = result.mean, result.error, "osD^vP"[number % 6]
            left.plot(mean, color=colour, label=result.label)
            if n <= MOST_BANDS:
                left.fill_between(range(len(mean)), mean - error, mean + error, color=colour, alpha=0.15, linewidth=0)
            if result.final_epsilon is not None:
                bar = None if np.isnan(error[-1]) else error[-1]
                right.errorbar(result.final_epsilon, mean[-1], bar, color=colour, marker=marker, capsize=3)
        seeds = sorted({len(result.runs) for result in results})
        some = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else seeds[0]
        over = "one seed" if seeds == [1] else f"mean ± standard error over {some} seeds"
        left.set(xlabel="round t", ylabel=f"{metric_in_words(summary['metric'])}\n({over})")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.set_xlabel(_of_epsilon(results))
        values = np.concatenate([result.mean for result in results])
        if summary["lower_is_better"] and np.nanmin(values) > 0 and np.nanmax(values) >= DECADE * np.nanmin(values):
            left.set_yscale("log", nonpositive="clip")
            left.set_ylim(np.nanmin(values) / 1.5, np.nanmax(values) * 1.2)
        positive = [result.final_epsilon for result in results if result.final_epsilon]
        if positive and max(positive) >= DECADE * min(positive):
            right.set_xscale("symlog", linthresh=min(positive))  # with room for settings at 0
        if n <= MOST_NAMED:
            figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
        title = f"{summary['experiment']} · {summary['problem']} · {n} setting{'s' * (n != 1)}"
        figure.suptitle(title, fontsize=11)
        figure.savefig(path, dpi=DPI, format="png")
    return path


def _of_epsilon(results: Sequence[SettingResult]) -> str:
    """The name of the axis: by which accountants, at which delta, of which neighbours."""
    summaries = [result.summary for result in results]
    by = " or ".join(dict.fromkeys(str(s["accountant"]).upper() for s in summaries))
    deltas = list(dict.fromkeys(s["delta"] for s in summaries))
    at = delta_in_symbols(deltas[0]) if len(deltas) == 1 else "δ: see the table of settings"
    relations = " or ".join(dict.fromkeys(neighbours(s["relation"]) for s in summaries if s["relation"]))
    without = sum(result.final_epsilon is None for result in results)
    last = f"{without} without a finite ε: only on the left" if without else ""
    lines = (f"final ε of one run, {by} accountant", textwrap.fill(at, width=50), relations, last)
    return "\n".join(filter(None, lines))


def _claims(experiment: Path) -> list[dict[str, Any]]:
    """The judged claims about the experiment, as text; none if there is no file with them."""

    def text(value: Any) -> str | None:
        return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    path = experiment / CLAIMS_FILE
    found = (read_object(path) or {}).get("findings")
    if not isinstance(found, list) and path.exists():
        logger.warning("%s cannot be read: it holds no list of findings", path)
    claims = [claim for claim in found if isinstance(claim, dict)] if isinstance(found, list) else []
    names = dict.fromkeys(key for claim in claims for key in claim)
    return [{name: text(claim.get(name)) for name in names} for claim in claims]
