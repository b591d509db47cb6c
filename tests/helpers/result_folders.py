"""Result folders of made-up experiments, and their analysis."""

import json
import math

import numpy as np
import pandas as pd
import yaml

from analysis import claims, load, pictures
from analysis.evidence.verdicts import family_verdicts

CURVES = {0: [0.8, 0.4, 0.2], 1: [0.9, 0.5, 0.1], 2: [0.7, 0.6, 0.6]}
TWO_ROUNDS = {"moments": 3.0, "rdp": 2.5, "pld": 2.0}


def server_node(name):
    """The entry `algorithm.server` of a config.yaml. name: of the class; None for agents that work alone."""
    return None if name is None else {"_target_": f"some.module.{name}"}


def write_run(
    results, setting, seed, curve, algorithm="ts", private=False, P=1, z=1.0, q=0.25, S=8, epsilon=None, spent=(),
    experiment="made_up", problem="synthetic", function_seed="seed", accountant="pld", lower_is_better=True,
    metric="simple_regret",
):  # fmt: skip
    """Write a finished run's folder. epsilon: by accountant, 0 by default. spent: epsilon after each broadcast."""
    folder = results / experiment / setting / str(seed)
    folder.mkdir(parents=True)
    problem_settings = {
        "_target_": "x",
        "n_agents": 7,
        "function_seed": seed if function_seed == "seed" else function_seed,
    }
    config = {
        "algorithm": {"name": algorithm, "private": private, "P": P},
        "privacy": {"z": z, "q": q, "S": S},
        "problem": problem_settings,
        "rounds": len(curve) - 1,
        "seed": seed,
        "experiment_name": experiment,
    }
    summary = {
        "experiment": experiment, "setting": setting, "problem": problem, "algorithm": algorithm, "seed": seed,
        "n_agents": 7, "rounds": len(curve) - 1, "metric": metric,
        "lower_is_better": lower_is_better, "private": private,
        "curve": {"round": list(range(len(curve))), "mean": curve, "se": [0.01] * len(curve), "se_over": "agents"},
        "delta": 0.01, "relation": "zero-out", "accountant": accountant, "rng": "seeded",
        "n_charges": 2 if epsilon else 0,
        "epsilon": epsilon or dict.fromkeys(TWO_ROUNDS, 0.0), "epsilon_covers": "the ledger's broadcasts",
        "clip_fraction": 0.0, "seconds": {"objective": 0.0, "total": 1.0},
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    server = pd.DataFrame({"round": np.arange(len(spent)), "epsilon": np.array(spent, float)})
    server.to_parquet(folder / "server.parquet")
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_all(folder):
    """Write TS, FTS-DE and one private setting, three seeds each."""
    for seed, curve in CURVES.items():
        write_run(folder, "aaa", seed, curve)
        no_epsilon = dict.fromkeys(TWO_ROUNDS)
        write_run(folder, "bbb", seed, curve, "fts_de", P=2, epsilon=no_epsilon, spent=[math.nan] * 2)
        write_run(
            folder, "ccc", seed, [2 * y for y in curve], "dp_fts_de", True, P=2, epsilon=TWO_ROUNDS, spent=[1.5, 2.0]
        )
    return folder


def read(results, experiment="made_up"):
    return load.settings(load.load(results, experiment))


def judged(results, *experiments):
    """The verdicts on the claims about some experiments, or about all."""
    return claims.judge(claims.read(results, experiments or {claim.experiment for claim in claims.claims()}))


def alone(outcome):
    """The verdict on a claim that is a family of its own."""
    return family_verdicts([outcome.evidence])[0][0]


def drawn(results, experiment, *more):
    """All figures of an experiment."""
    return pictures.draw_experiment(experiment, load.load(results, experiment), *more)
