"""The moments accountant (Abadi et al. 2016), which the DP-FTS-DE paper uses, with integer moments 1 to 32."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, logsumexp

from dpfbo.privacy.accounting.additive import AdditiveAccountant

_MOMENTS = np.arange(1, 33)


@dataclass(frozen=True)
class Moments(AdditiveAccountant):
    """Computes `eps = min_lambda (sum_t alpha_t(lambda) + log(1/delta)) / lambda` (Abadi et al. 2016, Thm. 2).

    alpha_t is the log moment generating function of the privacy loss in round t. Guarantee: an upper bound for
    Poisson-sampled Gaussian events.
    """

    def _cost(self, q: float, z: float) -> np.ndarray:
        """Return `alpha = log E[exp((k^2 - k) / (2 z^2))]`, k ~ Bin(lambda + 1, q) (Mironov, Talwar, Zhang 2019)."""
        if z == 0:
            return np.full(len(_MOMENTS), math.inf)
        alphas = []
        for order in _MOMENTS + 1:
            k = np.arange(order + 1) if q < 1 else np.array([order])
            log_choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
            log_outside = (order - k) * math.log1p(-q) if q < 1 else 0.0
            alphas.append(logsumexp(log_choose + k * math.log(q) + log_outside + (k * k - k) / (2 * z * z)))
        return np.array(alphas)

    def _epsilon_of(self, total: np.ndarray, delta: float) -> float:
        return float(np.min((total + math.log(1 / delta)) / _MOMENTS))
