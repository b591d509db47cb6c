"""Two-world replay: the real server runs many times with and without one agent's messages, and each run gets a score.

The canary is the agent with the largest weights. In world 1, it sends in every round the same message, which is far
longer than the clip norm. In world 0, it sends the zero vector (relation zero-out) or the opposite message
(replace-one). All other agents send zero vectors. The score is the log-likelihood ratio of all releases r_t. For
zero-out, it is

    sum_t log(1 - q + q exp(<r_t, v_t> / sigma_t^2 - |v_t|^2 / (2 sigma_t^2)))

v_t is the canary's contribution to a release, sigma_t the noise's standard deviation in each region, and q the
frequency with which the canary is chosen. All three are measured on other runs. The scores give a lower bound on
epsilon with 95 % confidence. It is valid for any server and any measured values.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.audit.bounds import FEWEST, Claim, Verdict, verdict
from dpfbo.audit.server.target import LONG_NORM, Target, seeded
from dpfbo.federated.messages import clip
from dpfbo.formats.words import REPLACE_ONE
from dpfbo.privacy.entropy import SystemEntropy
from dpfbo.privacy.ledger import Ledger

_PILOTS = 64  # measured rounds in all, but at least 16 runs


@dataclass(frozen=True)
class Replay:
    """The result of running a server many times with and without one agent's messages.

    verdict: the verdict on the privacy claim of the ledger. varying: True if the charges in the ledger differ between
    runs; charges must not depend on data or chance. opposite: True if the agent sends -m in the runs without its
    message m; False if it sends the zero vector there.
    """

    verdict: Verdict
    varying: bool
    opposite: bool

    @property
    def holds(self) -> bool:
        return self.verdict.holds and not self.varying


def replay(target: Target, trials: int, seed: int = 0, on_trial: Callable[[], None] = lambda: None) -> Replay:
    """Run the server `trials` times with and without one agent's messages, and judge the privacy claim of its ledger.

    on_trial: called after each pair of runs, one in each world. Raises ValueError for fewer than 20 trials.
    """
    checks.integer("trials", trials, minimum=FEWEST)
    system = isinstance(target.summing.entropy, SystemEntropy) or not target.seedable
    message, opposite = _message(target, seed), target.accountant.relation == REPLACE_ONE
    score = _Score.measured(target, message, f"measure/{seed}/0")
    projections, ledgers = np.zeros((2, trials, target.rounds)), dict[tuple[object, ...], Ledger]()
    for trial in range(trials):
        with torch.inference_mode():  # saves a sixth of the time
            for world, messages in enumerate((-message if opposite else torch.zeros_like(message), message)):
                entropy = SystemEntropy() if system else seeded("trial", seed, 0, world, trial)
                releases, ledger = target.run(entropy, messages)
                projections[world, trial] = score.projections(releases)
                ledgers.setdefault(tuple((c.round, c.q, c.z, c.sigma, c.subset) for c in ledger.charges), ledger)
        on_trial()
    # if the ledgers differ, claim the largest epsilon, in favour of the server
    dearest = max(ledgers.values(), key=lambda ledger: target.accountant.epsilon(ledger.events(), target.delta))
    claim = Claim.of(dearest.events(), target.accountant, target.delta)
    without, with_message = (score(p, opposite) for p in projections)
    return Replay(verdict(without, with_message, claim), len(ledgers) > 1, opposite)


def _message(target: Target, seed: int) -> Tensor:
    """Return all agents' messages, N x M: the canary sends a vector of large norm, all others zero vectors."""
    N, _, M = target.shape
    agent = int(torch.stack([target.weights(t).square().sum(0) for t in range(target.rounds)]).sum(0).argmax())
    direction = torch.from_numpy(np.random.Generator(np.random.PCG64(seed)).standard_normal((N, M))[agent])
    messages = torch.zeros(N, M, dtype=torch.float64)
    messages[agent] = LONG_NORM * target.message_norm * direction / direction.norm()
    return messages


@dataclass(frozen=True)
class _Score:
    """A callable that computes the scores of runs from projections of their releases.

    The projection of the release r_t of round t is `<r_t, directions[t]>`. v_t is what the canary (the tested agent)
    adds to r_t. sigma_t is the noise's standard deviation. directions: v_t / sigma_t^2 of each round, P x M. halves:
    |v_t|^2 / (2 sigma_t^2) of each round. q: the frequency with which the canary is chosen.
    """

    directions: list[Tensor]
    halves: np.ndarray
    q: float

    @staticmethod
    def measured(target: Target, messages: Tensor, label: object) -> "_Score":
        """Measure v_t, sigma_t and q in pairs of runs that differ only in the canary's message.

        v_t: the canary's contribution to the release of round t. sigma_t: the noise's standard deviation in each
        region. q: the frequency with which the canary is chosen.
        """
        target, T, (_, P, M) = target.repeatable, target.rounds, target.shape
        seen, hits, squares = np.zeros(T), np.zeros(T), np.zeros((T, P))
        alone = torch.zeros(T, P, M, dtype=torch.float64)
        for pilot in range(max(16, _PILOTS // T)):
            worlds = (torch.zeros_like(messages), messages)
            runs = [target.run(seeded(label, "pilot", pilot), sent)[0] for sent in worlds]
            for t, (quiet, full) in enumerate(zip(*runs, strict=True)):
                if quiet is None or full is None:
                    continue
                moved = torch.nan_to_num(full - quiet, 0.0, 0.0, 0.0)
                seen[t] += 1
                hits[t] += bool(moved.any())
                squares[t] += torch.nan_to_num(quiet, 0.0, 0.0, 0.0).square().mean(1).numpy()
                alone[t] += moved
        directions, halves, mechanism = [], np.zeros(T), target.mechanism
        for t in range(T):
            # if the canary was never in S_t, its contribution follows from the mechanism's formula
            claimed = target.weights(t) @ clip(messages, target.message_norm)[0] / mechanism.sampling_probability
            v = alone[t] / hits[t] if hits[t] else claimed
            least = (1e-6 * mechanism.tight_sensitivity(target.weights(t))) ** 2
            directions.append(v / torch.from_numpy(np.maximum(squares[t] / max(1.0, seen[t]), least))[:, None])
            halves[t] = float((v * directions[t]).sum()) / 2 * bool(seen[t])
        q = float(hits.sum() / seen.sum()) if hits.any() else mechanism.sampling_probability
        return _Score(directions, halves, q)

    def projections(self, releases: list[Tensor | None]) -> list[float]:
        """Return `<r_t, directions[t]>` for each release r_t; 0 for a round without a release."""
        pairs = zip(releases, self.directions, strict=True)
        return [0.0 if r is None else float((r * u).sum()) for r, u in pairs]

    def __call__(self, projections: np.ndarray, opposite: bool) -> np.ndarray:
        """Return the scores, trials x rounds -> trials; inf for a trial in which a release was not finite."""
        s = np.where(np.isfinite(projections), projections, 0.0)
        ratio = self._log_mixture(s - self.halves)
        if opposite:
            ratio = ratio - self._log_mixture(-s - self.halves)
        return np.where(np.isfinite(projections).all(1), ratio.sum(1), np.inf)

    def _log_mixture(self, exponent: np.ndarray) -> np.ndarray:
        return exponent if self.q >= 1 else np.logaddexp(np.log1p(-self.q), np.log(self.q) + exponent)
