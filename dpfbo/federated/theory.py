"""The terms of the paper's regret bound and privacy proposition, as numbers of a finished run.

Theorem 1 of Dai, Low and Jaillet (NeurIPS 2021), up to constants and logarithms, for agent A_1 with R_T its cumulative
regret, `||f_n|| <= B` in the RKHS and `|k(x, x') - phi(x)^T phi(x')| <= eps`:

    R_T = O~( (B + 1 / p_1) gamma_T sqrt(T) + sum_t psi_t + B sum_t vartheta_t )
    psi_t = O~( (1 - p_t) P phi_max q^-1 (Delta_t + z S sqrt(M)) ),    Delta_t = sum_n Delta_{n,t}
    Delta_{n,t} = O~( eps B t^2 + B + sqrt(M) + d_n + sqrt(gamma_t) ),    d_n = max_x |f_1(x) - f_n(x)|
    vartheta_t = (1 - p_t) sum_i sum_{n in C_t} phi_n^(i),    C_t = {n : ||omega_{n,t}||_2 > S / sqrt(P)}

Proposition 1: for constants c1, c2 and any eps < c1 q^2 T and delta > 0, DP-FTS-DE is (eps, delta)-private if
`z >= c2 q sqrt(T log(1 / delta)) / eps`.

Reliability: both are restated from memory and have NOT been compared with the paper's text; Proposition 1 has the form
of Theorem 1 of Abadi et al. (2016). Every constant hidden in O~ is 1 here. Terms of round t belong to the broadcast of
round t - 1, which its query may follow; phi_max is the largest weight of that broadcast; `z S phi_max / q` is the
standard deviation of the noise that was really added to each number.
"""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.federated.population.agents import Agents


def greedy_information_gain(K: Tensor, steps: int, noise: float) -> Tensor:
    """`gamma_1, .., gamma_steps`, where each point is the candidate that adds most to `1/2 log det(I + K_A / noise)`.

    That is the candidate of largest posterior variance (Srinivas et al. 2010). gamma_t is at least 1 - 1/e of the
    largest gain of any t candidates. A candidate may be chosen more than once. K: ... x n x n, the kernel matrix of the
    candidates; noise: lam, the variance of the observation noise. Returns ... x steps, in time O(steps^2 n).
    """
    checks.integer("steps", steps, minimum=1)
    checks.positive("noise", noise)
    n = K.shape[-1]
    variance = K.diagonal(dim1=-2, dim2=-1)  # ... x n, posterior
    rows = K.new_zeros(*K.shape[:-2], steps, n)  # K less rows^T rows is the posterior covariance
    gains = []
    for t in range(steps):
        largest, best = variance.max(-1, keepdim=True)  # ... x 1
        gains.append(0.5 * torch.log1p(largest / noise))
        chosen = rows[..., :t, :].take_along_dim(best[..., None], -1)  # ... x t x 1
        prior = K.take_along_dim(best[..., None], -2).squeeze(-2)  # ... x n
        covariance = prior - (chosen * rows[..., :t, :]).sum(-2)
        rows[..., t, :] = covariance / (largest + noise).sqrt()
        variance = (variance - rows[..., t, :] ** 2).clamp(min=0)
    return torch.cat(gains, -1).cumsum(-1)


def se_kernel(u: Tensor, lengthscale: float) -> Tensor:
    """`exp(-|x - x'|^2 / (2 l^2))` of unit-cube points, n x D; returns n x n."""
    return torch.exp(-0.5 * (torch.cdist(u, u) / lengthscale) ** 2)


def feature_error(K: Tensor, Phi: Tensor) -> float:
    """eps: the largest `|k(x, x') - phi(x)^T phi(x')|` of n points (K: n x n; Phi: n x M)."""
    return float((K - Phi @ Phi.mT).abs().max())


def clipped(messages: Tensor, norm: float) -> Tensor:
    """C_t: ... x N booleans, True for messages (... x N x M) longer than `norm`, that is `S / sqrt(P)`."""
    return messages.norm(dim=-1) > norm


def vartheta(follow: Tensor, weights: Tensor, in_C: Tensor) -> Tensor:
    """`vartheta_t`, T. follow: T, the probabilities 1 - p_t; weights: T x P x N; in_C: T x N, boolean."""
    return follow * (weights * in_C[:, None]).sum((1, 2))


def agent_errors(gamma: Tensor, norm_bound: float, eps: float, n_features: int, d: Tensor) -> Tensor:
    """`Delta_{n,t}` for t = 1..T, T x N. gamma: T; norm_bound: B; eps: see `feature_error`; n_features: M; d: N."""
    t = torch.arange(1, len(gamma) + 1, dtype=gamma.dtype, device="cpu")
    by_round = eps * norm_bound * t**2 + norm_bound + math.sqrt(n_features) + gamma.sqrt()
    return by_round[:, None] + d


def psi(follow: Tensor, weights: Tensor, q: float, Delta: Tensor, sigma: Tensor, n_features: int) -> Tensor:
    """`psi_t = (1 - p_t) P (phi_max Delta_t / q + sigma_t sqrt(M))`, T; the paper has `sigma_t = z S phi_max / q`.

    follow: T; weights: T x P x N; q: sampling probability; Delta: T; sigma: T; n_features: M.
    """
    phi_max = weights.amax((1, 2))
    return follow * weights.shape[1] * (phi_max * Delta / q + sigma * math.sqrt(n_features))


def largest_c2(z: float, epsilon: float, q: float, rounds: int, delta: float) -> float:
    """The largest c2 for which `z >= c2 q sqrt(T log(1 / delta)) / eps` (Proposition 1)."""
    return z * epsilon / (q * math.sqrt(rounds * math.log(1 / delta)))


def smallest_c1(epsilon: float, q: float, rounds: int) -> float:
    """The bound that c1 must exceed for `eps < c1 q^2 T` (Proposition 1)."""
    return epsilon / (q**2 * rounds)


def replayed_messages(agents: Agents, n_agents: int, history: Iterable[tuple[Tensor, Tensor]]) -> Iterator[Tensor]:
    """Compute the messages of a simulated run again, up to rounding, for rounds 0, 1, .., N x M each.

    history: each round's points (N x k x D, unit cube) and observations (N x k).
    """
    state = agents.initial_state(torch.arange(n_agents, device="cpu"))
    for t, (u, y) in enumerate(history):
        state.append(u, y)
        yield agents.messages(state, t)
