"""Outsource optimisation (PO-GP-UCB): a modeler who never sees the curator's table chooses which rows to measure.

Run it by `python examples/outsourced.py`.
"""

import dpfbo
from dpfbo import outsourced
from dpfbo.privacy import SeededEntropy


def main(side_points=60, rounds=30, epsilon=3.0, delta=1e-5):
    problem = dpfbo.problems.GridGP(side_points=side_points)  # n candidates: rows of two confidential features
    streams = dpfbo.Streams(0)
    transforms = {
        "rows as they are, not private": outsourced.Plain(),
        "Gaussian noise, private": outsourced.GaussianNoise(epsilon, delta),
        "PO-GP-UCB, no guarantee": outsourced.RandomProjection(r=10, epsilon=epsilon, delta=delta),
    }
    regrets = {}
    for name, transform in transforms.items():
        # The curator charges its ledger, releases the transformed table once, and then measures the requested rows.
        ledger, event = dpfbo.Ledger(), transform.event(problem.table.public)
        curve = dpfbo.privacy.EpsilonCurve(dpfbo.accountant_named("pld"), [event] if event else [], delta)
        curator = outsourced.Curator(
            problem, transform, streams, SeededEntropy(streams), ledger, curve, capacity=rounds + 1
        )

        # The modeler knows the public facts and a GP prior, and requests a measurement by the index of a released row.
        prior, public = problem.prior, problem.table.public
        belief = outsourced.Belief(transform.scale(problem.table), prior.variance, prior.noise, prior.mean)
        brief = outsourced.Brief(transform, public, belief, outsourced.Policy(), capacity=rounds + 1)

        setup = outsourced.Setup(problem.table, streams, n_init=1, rounds=rounds)
        result = outsourced.run_outsourced(curator, outsourced.LocalModeler(brief), setup)
        regrets[name] = result.rounds[-1].mean
        spent = f"epsilon {curve.after(ledger.events()):.2f}" if transform.private else "no epsilon"
        print(f"{name:30} regret {regrets[name]:.3f} after {rounds} measurements, {spent}")
    return regrets


if __name__ == "__main__":
    main()
