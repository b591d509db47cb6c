"""Made-up experiments in every state, for the board."""

import json
import shutil

from dpfbo.formats.run_folder import Progress, RunFolder
from runners.sweep.trials import Trial, write_plan
from tests.helpers.result_folders import TWO_ROUNDS, write_run

FACTS = {
    "problem": "synthetic", "algorithm": "dp_fts_de", "metric": "simple_regret", "lower_is_better": True,
    "private": True, "delta": 0.05, "relation": "zero-out", "accountant": "pld", "rng": "seeded", "target_epsilon": 4.0,
}  # fmt: skip
BEST = [{"agent": 0, "round": 2, "value": 0.5, "rate": 0.013, "kernel": "rbf"}]


def change(folder, **entries):
    """Change entries of a run's summary."""
    path = folder / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def write(results, setting, seed, curve, *rest, **more):
    """Write a finished run of any kind."""
    folder = write_run(results, setting, seed, curve, *rest, **{"experiment": "mine", **more})
    change(folder, final={"mean": curve[-1], "se": 0.01})
    return folder


def finish(results, setting, seed, curve, real=False, **more):
    """Write a finished private run of two broadcasts, by default a simulation."""
    more = {"P": 2, "epsilon": TWO_ROUNDS, "spent": [1.5, 2.0], **more}
    folder = write(results, setting, seed, curve, "dp_fts_de", True, **more)
    change(folder, rng="os" if real else "seeded", best=None if real else BEST)
    return folder


def begin(results, setting, seed, means, rounds=2, **facts):
    """Write a run that was interrupted after these rounds."""
    folder = RunFolder(results / "mine" / setting / str(seed))
    shutil.rmtree(folder.path, ignore_errors=True)
    folder.path.mkdir(parents=True)
    at = list(range(len(means)))
    curve = {"round": at, "mean": means, "epsilon": [0.0, 1.5, 2.0][: len(means)]}
    folder.note_progress(Progress(at[-1], rounds, means[-1], curve["epsilon"][-1], {**FACTS, **facts}, curve))
    return folder


def plan(results, settings, seeds, rng="seeded", rounds=2):
    """Write sweep.json. settings: label by name."""
    pairs = [(seed, name) for seed in seeds for name in settings]
    trials = [Trial(settings[name], ("x=1",), name, seed, rounds, "simple_regret", rng) for seed, name in pairs]
    write_plan(results / "mine", trials)
    return results / "mine"
