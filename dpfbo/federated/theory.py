"""The terms of the paper's regret bound and of its privacy proposition, computed for a finished run.

Theorem 1 of Dai, Low and Jaillet (NeurIPS 2021) bounds the cumulative regret R_T of agent A_1, up to constants and
logarithms. The theorem assumes that `||f_n|| <= B` in the RKHS, and that the features phi(x) approximate the kernel
with an error of at most eps, `|k(x, x') - phi(x)^T phi(x')| <= eps`:

    R_T = O~( (B + 1 / p_1) gamma_T sqrt(T) + sum_t psi_t + B sum_t vartheta_t )
    psi_t = O~( (1 - p_t) P phi_max q^-1 (Delta_t + z S sqrt(M)) ),    Delta_t = sum_n Delta_{n,t}
    Delta_{n,t} = O~( eps B t^2 + B + sqrt(M) + d_n + sqrt(gamma_t) ),    d_n = max_x |f_1(x) - f_n(x)|
    vartheta_t = (1 - p_t) sum_i sum_{n in C_t} phi_n^(i),    C_t = {n : ||omega_{n,t}||_2 > S / sqrt(P)}

In round t - 1, agent n sends the message omega_{n,t} of M numbers, and the server makes a broadcast from the messages.
In round t, each agent follows this broadcast with probability 1 - p_t. So the index t is the round in which agents
follow the broadcast, not the round in which the server makes the broadcast. The domain is divided into P regions. In
region i, agent n has the weight phi_n^(i); phi_max is the largest weight. The mechanism has the sampling probability q,
the noise multiplier z and the clip norm S. gamma_t is the information gain.

Proposition 1: there are constants c1 and c2 such that, for any epsilon < c1 q^2 T and delta > 0, DP-FTS-DE is
(epsilon, delta)-private if `z >= c2 q sqrt(T log(1 / delta)) / epsilon`. This epsilon is not the kernel error eps.

This module sets every constant hidden in O~ to 1, except in `explicit_agent_errors` and `explicit_psi`.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.federated.population.agents import Agents
from dpfbo.gp.draws import ConfidenceScale


def regularization(rounds: int) -> float:
    """Return `lam = 1 + 2 / T`, the noise variance that the theory uses in GP posteriors and in eq. 2.

    Raises SettingError if T < 1.

    Example:
        >>> regularization(40)
        1.05
    """
    checks.integer("rounds", rounds, minimum=1)
    return 1 + 2 / rounds


def greedy_information_gain(K: Tensor, steps: int, noise: float) -> Tensor:
    """Return the information gains gamma_1, .., gamma_steps of a greedily grown set A of candidates.

    Each step adds the candidate of largest posterior variance (Srinivas et al. 2010); a candidate may be added more
    than once. After t steps, gamma_t is `1/2 log det(I + K_A / noise)`. gamma_t is at least (1 - 1/e) times the
    largest gain of any t candidates. The result has the shape `... x steps`. The run time is O(steps^2 n).

    K: the candidates' kernel matrix, `... x n x n`; noise: lam, the variance of observation noise.
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
    """Return the SE kernel `exp(-|x - x'|^2 / (2 l^2))`, n x n, between unit-cube points, n x D."""
    return torch.exp(-0.5 * (torch.cdist(u, u) / lengthscale) ** 2)


def feature_error(K: Tensor, Phi: Tensor) -> float:
    """Return eps, the largest `|k(x, x') - phi(x)^T phi(x')|` between n points (K: n x n; Phi: n x M)."""
    return float((K - Phi @ Phi.mT).abs().max())


def clipped(messages: Tensor, norm: float) -> Tensor:
    """Return the set C_t of agents whose messages are clipped, as booleans, ... x N.

    messages: ... x N x M. norm: `S / sqrt(P)`, the L2 norm above which a message is clipped.
    """
    return messages.norm(dim=-1) > norm


def vartheta(follow: Tensor, weights: Tensor, in_C: Tensor) -> Tensor:
    """Return Theorem 1's `vartheta_t = (1 - p_t) sum_i sum_{n in C_t} phi_n^(i)` for t = 1..T.

    follow: T, the probabilities 1 - p_t that an agent follows a broadcast; weights: T x P x N, phi_n^(i); in_C: T x N,
    True for the agents in C_t, whose messages are clipped.
    """
    return follow * (weights * in_C[:, None]).sum((1, 2))


def agent_errors(gamma: Tensor, norm_bound: float, eps: float, n_features: int, d: Tensor) -> Tensor:
    """Return Theorem 1's `Delta_{n,t} = eps B t^2 + B + sqrt(M) + d_n + sqrt(gamma_t)` for t = 1..T, T x N.

    gamma: T, information gains; norm_bound: B, the bound on the objectives' norms; eps: `feature_error`; n_features: M;
    d: N, the distances `d_n = max_x |f_1(x) - f_n(x)|`.
    """
    t = torch.arange(1, len(gamma) + 1, dtype=gamma.dtype, device="cpu")
    by_round = eps * norm_bound * t**2 + norm_bound + math.sqrt(n_features) + gamma.sqrt()
    return by_round[:, None] + d


def psi(follow: Tensor, weights: Tensor, q: float, Delta: Tensor, sigma: Tensor, n_features: int) -> Tensor:
    """Return Theorem 1's `psi_t = (1 - p_t) P (phi_max Delta_t / q + sigma_t sqrt(M))` for each of T rounds.

    follow: the T probabilities 1 - p_t that an agent follows a broadcast. weights: T x P x N; phi_max is the largest
    weight of a round. q: the sampling probability. Delta: T numbers; each is the sum of `Delta_{n,t}` over the agents
    n. sigma: the T standard deviations of the noise, `sigma_t = z S phi_max / q` in the paper. n_features: M.
    """
    phi_max = weights.amax((1, 2))
    return follow * weights.shape[1] * (phi_max * Delta / q + sigma * math.sqrt(n_features))


def explicit_agent_errors(
    gamma: Tensor, n_observations: Tensor, confidence: ConfidenceScale, eps: float, lam: float, n_features: int,
    rounds: int, d: Tensor,
) -> Tensor:  # fmt: skip
    """Return the bounds `Delta_{n,t}` on the agents' errors, T x N, with explicit constants.

    The bounds are `|phi(x)^T omega_n - f_1(x)| <= Delta_{n,t}` for all x, n and t. If `lam = 1 + 2 / T` and the
    observation noise is R-sub-Gaussian, all bounds hold together with probability at least `1 - 3 delta / 8`. Here k is
    n_observations, k_T is the largest k, nu_n is the mean of the message omega_n, and mu_n is the posterior mean of
    agent n's GP. Each line ends with the difference that the line bounds:

        Delta_{n,t} = eps k / lam (1 + k / lam) (B + R sqrt(2 log(16 N k_T / delta)))      |phi^T nu_n - mu_n|
                    + B + R sqrt(2 (gamma + 1 + log(8 N / delta)))                         |mu_n - f_n|
                    + sqrt(M) + sqrt(2 log(8 N T / delta))                                 |phi^T (omega_n - nu_n)|
                    + d_n                                                                  |f_n - f_1|

    The derivation is our own, modelled on Lemma 3; the constants of the paper may differ.

    Line 1: the features' kernel `phi(x)^T phi(x')` differs from the exact kernel by at most eps. So the vector of
    kernel values between x and the k observed points differs by at most `eps sqrt(k)` in norm, and the kernel matrix
    of these points differs by at most `eps k`. Also, `|y_i| <= B + |noise_i|`. Line 2: Theorem 2 of Chowdhury and
    Gopalan (2017), with posterior standard deviations of at most 1. Line 3: the covariance of omega_n is
    `lam Sigma^-1 <= I`, and M standard normals have a norm above `sqrt(M) + u` with a probability of at most
    `exp(-u^2 / 2)`.

    `Delta_{n,t}` bounds the error of the message that agent n sends in round t - 1, for t = 1..T. n_observations and
    gamma have T entries, one for each of the rounds 0..T-1. n_observations: the number of observations from which an
    agent's message is computed. gamma: the information gain of this number of observations, the same for all agents.
    confidence: B, R, delta. d: d_n for each of N agents.
    """
    k, N, scale = n_observations, len(d), confidence
    largest = scale.norm_bound + scale.noise_sd * math.sqrt(2 * math.log(16 * N * float(k.max()) / scale.delta))
    features = eps * k / lam * (1 + k / lam) * largest
    beta = replace(scale, delta=scale.delta / (2 * N)).beta(gamma)
    draw = math.sqrt(n_features) + math.sqrt(2 * math.log(8 * N * rounds / scale.delta))
    return (features + beta + draw)[:, None] + d


def explicit_psi(
    follow: Tensor, weights: Tensor, q: float, Delta: Tensor, sigma: Tensor, n_features: int, norm_bound: float,
    delta: float,
) -> Tensor:  # fmt: skip
    """Return Theorem 1's T numbers `psi_t`, one for each round, with the constants of Lemma 6.

        psi_t = (1 - p_t) P ( ((phi_max + 2) / q + 6) Delta_t + B (2 + N phi_max) / q
                              + 2 sigma_t sqrt(2 M log(8 M / delta)) )

    The three terms in the brackets are quoted from the paper, where `sigma_t = z S phi_max / q`. The maintainers assume
    that Theorem 1's factor (1 - p_t) P multiplies these terms. norm_bound: B. delta: the probability that the bound
    fails. Delta: T numbers `Delta_t`; each is an upper bound on the sum of the agents' errors, such as the sum of
    `explicit_agent_errors` over the agents. The other arguments are those of `psi`.
    """
    _, P, N = weights.shape
    phi_max = weights.amax((1, 2))
    noise = 2 * sigma * math.sqrt(2 * n_features * math.log(8 * n_features / delta))
    return follow * P * (((phi_max + 2) / q + 6) * Delta + norm_bound * (2 + N * phi_max) / q + noise)


def largest_c2(z: float, epsilon: float, q: float, rounds: int, delta: float) -> float:
    """Return the largest c2 for which `z >= c2 q sqrt(T log(1 / delta)) / epsilon` (Proposition 1)."""
    return z * epsilon / (q * math.sqrt(rounds * math.log(1 / delta)))


def smallest_c1(epsilon: float, q: float, rounds: int) -> float:
    """Return the bound that c1 must exceed for `epsilon < c1 q^2 T` (Proposition 1)."""
    return epsilon / (q**2 * rounds)


def replayed_messages(agents: Agents, n_agents: int, history: Iterable[tuple[Tensor, Tensor]]) -> Iterator[Tensor]:
    """Recompute, up to rounding, the messages of a simulated run; yield N x M for each round.

    history: each round's points (N x k x D, unit cube) and observations (N x k).
    """
    state = agents.initial_state(torch.arange(n_agents, device="cpu"))
    for t, (u, y) in enumerate(history):
        state.append(u, y)
        yield agents.messages(state, t)
