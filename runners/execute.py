"""Run one experiment in this process and leave its records on disk."""

import logging
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from dpfbo import federation, records
from dpfbo.accounting import RELATION
from dpfbo.ledger import Ledger
from dpfbo.records import RoundRecord
from dpfbo.server import ServerRecord
from runners.experiment import Experiment, build, setting_hash, use_threads
from runners.results import RunFolder
from runners.trackers import WandbTracker

logger = logging.getLogger(__name__)

OnRound = Callable[[RoundRecord, ServerRecord | None], None]


def execute(cfg: DictConfig, on_round: OnRound = lambda agents, server: None) -> tuple[dict[str, Any], Path]:
    """Build, run and record the experiment of a composed configuration; returns its summary and its folder.

    Raises before any work starts for bad settings, missing data or an unwritable folder; see `experiment.build`.
    """
    experiment = build(cfg)
    settings = experiment.settings
    wandb_settings = settings["tracker"]["wandb"]
    tracker = WandbTracker(wandb_settings["mode"], wandb_settings["project"], wandb_settings["entity"])
    use_threads(settings["executor"])
    name = setting_hash(cfg)
    group = str(settings["experiment_name"])
    folder = RunFolder(Path(settings["results_dir"]).absolute() / group / name / str(settings["seed"]))
    with folder.opened():
        ledger = Ledger(folder.ledger_path)
        _say_what_is_unusual(experiment, ledger)
        label = f"{experiment.problem.name}-{settings['algorithm']['name']}-{name}-{settings['seed']}"
        tracker.start(settings, folder.path, label, group, [experiment.problem.name, settings["algorithm"]["name"]])
        clock_marks: dict[str, float] = {}
        result = federation.Result()

        def report(agents: RoundRecord, server: ServerRecord | None) -> None:
            tracker.log_round(agents.round, _metrics(agents, server, result, clock_marks))
            on_round(agents, server)

        try:
            federation.run(
                experiment.problem, experiment.agents, experiment.server(ledger), experiment.rounds, experiment.streams,
                report, result,
            )  # fmt: skip
            summary = summarise(experiment, result, ledger, name)
            ids = torch.arange(experiment.problem.n_agents)
            rounds, server = records.rounds_table(result.rounds, ids), records.server_table(result.server)
            folder.write(OmegaConf.to_yaml(cfg, resolve=True), rounds, server, summary)
        except BaseException as error:
            tracker.fail(f"{type(error).__name__}: {error}")
            raise
    tracker.finish(summary, [])
    return summary, folder.path


def summarise(experiment: Experiment, result: federation.Result, ledger: Ledger, name: str) -> dict[str, Any]:
    """The contents of summary.json; null stands for "no finite value"."""
    settings = experiment.settings
    chosen = sum(r.release.n_chosen for r in result.server)
    mean, se = [r.mean for r in result.rounds], [r.standard_error for r in result.rounds]
    return {
        "experiment": settings["experiment_name"],
        "setting": name,
        "problem": experiment.problem.name,
        "algorithm": settings["algorithm"]["name"],
        "seed": settings["seed"],
        "n_agents": experiment.problem.n_agents,
        "rounds": experiment.rounds,
        "metric": experiment.problem.metric,
        "lower_is_better": experiment.problem.lower_is_better,
        "curve": {"round": list(range(len(mean))), "mean": mean, "se": se, "se_over": "agents"},
        "final": {"mean": mean[-1], "se": se[-1]},
        "private": bool(settings["algorithm"]["private"]),
        "delta": experiment.delta,
        "relation": RELATION,
        "accountant": settings["privacy"]["accountant"],
        "epsilon": experiment.epsilons(ledger),
        "epsilon_covers": "the ledger's broadcasts; not settings chosen by comparing runs on the same private data, "
        "nor other seeds and settings, whose ledgers add up",
        "simulation_only": ["curve", "final", "clip_fraction", "n_rejected", "seconds"],
        "rng": settings["privacy"]["rng"],
        "n_charges": len(ledger.charges),
        "clip_fraction": sum(r.release.n_clipped for r in result.server) / chosen if chosen else None,
        "n_rejected": sum(r.release.n_rejected for r in result.server),
        "seconds": {**result.clock.seconds, "total": sum(result.clock.seconds.values())},
        "commit": _commit(),
    }


def _metrics(
    agents: RoundRecord, server: ServerRecord | None, result: federation.Result, marks: dict[str, float]
) -> dict[str, float | None]:
    """What a tracker shows of one round."""
    last = agents.regret[:, -1]
    low, median, high = torch.quantile(last, torch.tensor([0.1, 0.5, 0.9], dtype=last.dtype)).tolist()
    seconds = {f"seconds/{k}": v - marks.get(k, 0.0) for k, v in result.clock.seconds.items()}
    marks.update(result.clock.seconds)
    metrics: dict[str, float | None] = {
        "regret/mean": agents.mean, "regret/q10": low, "regret/median": median, "regret/q90": high, **seconds,
    }  # fmt: skip
    if server is not None:
        row = records.server_row(server)
        metrics.update({"epsilon" if k == "epsilon" else f"server/{k}": v for k, v in row.items() if k != "round"})
    return metrics


def _say_what_is_unusual(experiment: Experiment, ledger: Ledger) -> None:
    privacy = experiment.settings["privacy"]
    if experiment.settings["algorithm"]["private"]:
        if privacy["rng"] == "seeded":
            logger.info("privacy.rng=seeded: a simulation; whoever knows the seed can remove the noise")
        if privacy["z"] == 0:
            logger.warning("privacy.z=0 adds no noise: there is no finite epsilon")
    if ledger.carried_over:
        advice = "these releases are real, keep this ledger"
        if privacy["rng"] == "seeded":
            advice = "delete the folder to start a new simulation"
        logger.warning(
            "%s already holds %d broadcasts: equal ones are not charged again, different ones add to epsilon; %s",
            ledger.path, ledger.carried_over, advice,
        )  # fmt: skip


def _commit() -> str | None:
    """The git commit of the code, with "+" if there are uncommitted changes; None outside a checkout."""
    try:
        describe = [
            "git",
            "-C",
            str(Path(__file__).parent),
            "describe",
            "--always",
            "--dirty=+",
            "--abbrev=40",
            "--exclude=*",
        ]
        return subprocess.run(describe, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
