"""Plan a privacy budget before anything is evaluated, spend it, and read the ledger afterwards.

Run it by `python examples/privacy_budget.py`.
"""

from pathlib import Path
from tempfile import mkdtemp

import dpfbo

DELTA = 1e-5


def main(agents=200, rounds=20, folder=None):
    # Compute the epsilon of noise multiplier 1 by each accountant.
    space = {"x": dpfbo.Float(0, 1)}
    study = dpfbo.create_study(
        space, n_agents=agents, algorithm="dp_fts_de", noise_multiplier=1, delta=DELTA, rounds=rounds, rng="seeded"
    )
    print("z = 1:", {name: round(epsilon, 2) for name, epsilon in study.plan.totals().items()})

    # Find the noise for epsilon 2, and how many rounds epsilon 1.5 pays for at this noise.
    calibrated = study.calibrated(2.0)
    affordable = calibrated.plan.limited(1.5).affordable()
    print(f"epsilon 2 needs z = {calibrated.mechanism.noise_multiplier}; epsilon 1.5 pays for {affordable} such rounds")

    # Run the study: the ledger on disk is charged before each broadcast leaves the server.
    ledger = dpfbo.Ledger(Path(mkdtemp() if folder is None else folder) / "ledger.jsonl")
    problem = dpfbo.Custom(lambda agent, x: -((x["x"] - 0.3) ** 2), n_agents=agents, space=space)
    result = dpfbo.run_study(calibrated, problem, ledger)
    print(result)

    # Any later process can read the ledger. Two runs on the same data have the epsilon of the events of both.
    read = dpfbo.Ledger(ledger.path)
    accountant = dpfbo.accountant_named("pld")
    spent = accountant.epsilon(read.events(), DELTA)
    print(f"{len(read.charges)} broadcasts, epsilon {spent:.2f} at delta {DELTA:g}, relation {accountant.relation}")
    print(f"twice: epsilon {accountant.epsilon([*read.events(), *read.events()], DELTA):.2f}")
    return spent


if __name__ == "__main__":
    main()
