"""Compare your own weighting for distributed exploration with the paper's softmax.

For each region the server adds up the agents' messages with weights. The mechanism computes the sensitivity, and with
it the noise, from the weights, so epsilon does not depend on the weighting.

Run it by `python examples/own_weighting.py`.
"""

from dataclasses import dataclass, replace

import torch

import dpfbo


@dataclass(frozen=True)
class OwnRegion:
    """Weigh the agents assigned to a region `factor` times as much as others, in the first `rounds` rounds."""

    factor: float = 10.0
    rounds: int = 5

    def level(self, round):
        """Return the same number for all rounds with equal weights: the accountant analyses such rounds once."""
        return float(round < self.rounds)

    def __call__(self, round, assignment, P):
        """Return the weights of a round, P x N, whose rows sum to 1. assignment: N, the region of each agent."""
        own = assignment == torch.arange(P)[:, None]  # P x N
        raw = torch.where(own, self.factor if self.level(round) else 1.0, 1.0).double()
        return raw / raw.sum(1, keepdim=True)


def main(agents=100, rounds=15):
    problem = dpfbo.problems.Branin(n_agents=agents)
    study = dpfbo.create_study(
        problem.domain, n_agents=agents, algorithm="dp_fts_de", epsilon=4.0, rounds=rounds, rng="seeded",
        preset=dpfbo.Preset(P=4), acquisition=dpfbo.gp.Acquisition(n_candidates=200, n_starts=5),
    )  # fmt: skip
    softmax, own = (dpfbo.run_study(s, problem) for s in (study, replace(study, weights=OwnRegion())))
    for name, result in (("softmax", softmax), ("own", own)):
        sigma = [f"{record.sigma:.2f}" for record in result.result.server[:: max(1, rounds // 3)]]
        print(f"{name:8} regret {result.curve[-1]:.4f}, epsilon {result.epsilon:.2f}, noise {', '.join(sigma)}")
    return softmax, own


if __name__ == "__main__":
    main()
