"""DP-FTS-DE as Algorithms 1 and 2 of Dai, Low, Jaillet (NeurIPS 2021), written with parts of the library.

The first axis of the agents' tensors is the agent, so one line computes a step for all agents. A test checks that the
library's own loop makes the same queries. Run it by `python examples/paper_algorithms.py`.
"""

import torch

import dpfbo
from dpfbo.federated.messages import clip
from dpfbo.gp import Acquisition, Design, OwnDraw, OwnGP, shared_features
from dpfbo.gp.posterior import cholesky, sample_weights
from dpfbo.privacy.accounting.events import round_event


def main(N=200, T=10, N_init=10, P=2, M=50, q=0.25, z=1.0, S=11.0, lam=0.01, l=0.03, seed=0):
    problem, streams, agents = dpfbo.problems.Synthetic(n_agents=N), dpfbo.Streams(seed), torch.arange(N)
    entropy, events = dpfbo.privacy.SeededEntropy(streams), []  # a simulation: the seed reveals the noise
    grid, regions = problem.domain, dpfbo.space.Regions(P, dimension=1)
    region, weighting = regions.assign(agents), dpfbo.federated.Softmax(dpfbo.federated.Decay(hold=5, steps=5))
    phi = shared_features(M, 1, l, streams.generator("features"))  # one map for all agents
    own_gp, own_draw = OwnGP(fit="given", lengthscale=l, variance=1.0, noise=lam).start(N), OwnDraw("exact")

    def message(x, y, t):
        """Draw omega_n ~ N(nu_n, lam Sigma_n^-1), Eq. 2, by Matheron's rule; N x M."""
        Phi = phi(x)  # N x k x M
        K = Phi @ Phi.mT + lam * torch.eye(y.shape[1], dtype=y.dtype)
        w0 = streams.normal("message/weights", agents, t, M)
        e = lam**0.5 * streams.normal("message/noise", agents, t, y.shape[1])
        return sample_weights(Phi, cholesky(K), y, w0, e)

    # Algorithm 2, lines 1 to 3: every agent queries N_init points of its own sub-region and makes a message.
    x = Design(grid, regions, streams, N_init).points(agents)  # N x N_init x 1
    y = problem.evaluate(agents, x, streams, 0)  # N x N_init
    for t in range(T):
        # Algorithm 1, lines 5 to 13: the server chooses S_t, clips, weighs, adds up, adds noise, and broadcasts.
        chosen = entropy.uniform("choice", t, N) < q  # N
        clipped, _ = clip(message(x, y, t)[chosen], S / P**0.5)  # |S_t| x M
        weights = weighting(t, region, P)  # phi_n^(i), P x N
        sensitivity = S * float(weights.max()) / q
        total = weights[:, chosen] @ clipped / q  # P x M
        broadcast = dpfbo.privacy.Gaussian().add(total, z * sensitivity, sensitivity, entropy, t)
        events.append(round_event(q, z))  # for the accountant

        # Algorithm 2, lines 5 to 9, of round t + 1: query an own draw's argmax with probability p, else the server's.
        p = 1 - 1 / (t + 1) ** 0.5
        values = (phi(grid.unit_points[None])[0] @ broadcast.T).gather(1, regions.region_of(grid.unit_points)[:, None])
        server = grid.unit_points[values[:, 0].argmax()]  # argmax_x phi(x) . omega^(i[x])
        own = own_draw.maximizers(agents, x, y, own_gp, grid, Acquisition(), streams, t + 1)  # N x 1
        follows = streams.uniform("follow", agents, t + 1, 1) < 1 - p  # N x 1
        new = torch.where(follows, server, own)[:, None]  # N x 1 x 1
        x, y = torch.cat([x, new], 1), torch.cat([y, problem.evaluate(agents, new, streams, t + 1)], 1)  # lines 10, 11
    regret = (problem.reference - problem.true_value(agents, x, y).amax(1)).mean()
    epsilon = dpfbo.accountant_named("pld").epsilon(events, dpfbo.default_delta(N))
    print(f"mean simple regret after {T} rounds: {regret:.4f}, epsilon {epsilon:.2f}")
    return x


if __name__ == "__main__":
    main()
