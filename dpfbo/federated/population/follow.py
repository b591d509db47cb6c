"""The probability `1 - p_t` that an agent follows the server, by name (Algo. 2 line 5)."""

import math
from collections.abc import Callable

FOLLOW_PROBABILITY: dict[str, Callable[[int], float]] = {
    "inverse_sqrt": lambda t: 1 / math.sqrt(t),  # the paper's synthetic experiments
    "inverse": lambda t: 1 / t,  # the paper's real-data experiments
    "inverse_square": lambda t: 1 / t**2,  # the theory
    "never": lambda t: 0.0,  # p_t = 1: local Thompson sampling alone
    "always": lambda t: 1.0,
}
