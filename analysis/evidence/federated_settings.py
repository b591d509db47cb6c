"""The federated settings that claims are about, by what makes them so (not by the name they were run under)."""

from analysis.evidence.claim import CONTROL
from analysis.evidence.comparisons import BetterThanAll, ClaimTest
from analysis.evidence.selection import Measure, SettingFilter

_PLUS = {
    "algorithm.message": "mean", "algorithm.message_center": True, "algorithm.message_normalize": True,
    "privacy.sensitivity": "tight",
}  # fmt: skip


def _named(words: str, server: str | None, private: bool, P: int | None, **more: object) -> SettingFilter:
    keys = {"algorithm.server": server, "algorithm.private": private, **more}
    return SettingFilter(words, tuple((keys if P is None else {**keys, "algorithm.P": P}).items()))


def ts() -> SettingFilter:
    """Local Thompson sampling."""
    return _named("TS", None, False, None, **{"algorithm.follow": "never"})


def fts(P: int = 1) -> SettingFilter:
    """FTS (P = 1) or FTS-DE, not private."""
    return _named("FTS" if P == 1 else f"FTS-DE, P = {P}", "Server", False, P)


def dp(P: int, q: float, z: float, S: float | None = None) -> SettingFilter:
    """DP-FTS (P = 1) or DP-FTS-DE. S: None for whatever the problem's preset says."""
    words = f"{'DP-FTS' if P == 1 else f'DP-FTS-DE, P = {P}'}, q = {q:g}, z = {z:g}"
    where = _named(words, "Server", True, P, **{"privacy.q": q, "privacy.z": z})
    return where if S is None else where.but(f", S = {S:g}", {"privacy.S": S})


def dp_at(P: int, epsilon: float, plus: bool = False) -> SettingFilter:
    """DP-FTS (P = 1) or DP-FTS-DE, or with `plus` DP-FTS-DE+, with the noise for a target epsilon."""
    name = "DP-FTS" if P == 1 else f"DP-FTS-DE{'+' * plus}, P = {P}"
    where = _named(f"{name}, ε = {epsilon:g}", "Server", True, P, **{"privacy.epsilon": epsilon})
    return where.but("", _PLUS) if plus else where


def prior(epsilon: float) -> SettingFilter:
    """The private prior at a target epsilon."""
    keys = {
        "algorithm.message": "statistics", "algorithm.follow": "always", "algorithm.broadcasts": 1,
        "algorithm.M": _is_number, "weights._target_": "Uniform", "privacy.S": _is_number, "privacy.epsilon": epsilon,
    }  # fmt: skip
    return _named(f"private prior, ε = {epsilon:g}", "PriorServer", True, 1, **keys)


def controls(P: int) -> tuple[SettingFilter, ...]:
    """The server branch replaced by random and by Sobol queries, at the same P: what federation must beat."""
    regions = f", P = {P}" if P > 1 else ""
    return tuple(
        _named(f"{words} server{regions}", server, False, P)
        for server, words in (("RandomServer", "random"), ("SobolServer", "Sobol"))
    )


def sharing_helps(
    where: SettingFilter, blind: tuple[SettingFilter, ...], measure: Measure
) -> tuple[str, str, ClaimTest, str]:
    """The claim that a setting beats its controls: words, what was published, test, source."""
    words = f"Sharing helps: {where.words} beats blind servers"
    return words, "not tested there", BetterThanAll(where, blind[0], blind[1:], measure), CONTROL


def following(where: SettingFilter, rule: str) -> SettingFilter:
    """With another 1 - p_t than the problem's preset."""
    formula = {"inverse_sqrt": "1/√t", "inverse": "1/t", "inverse_square": "1/t²"}[rule]
    return where.but(f", 1 − p_t = {formula}", {"algorithm.follow": rule})


def anywhere(where: SettingFilter) -> SettingFilter:
    """With initial points in the whole domain instead of the agent's own sub-region."""
    return where.but(", initial points anywhere", {"algorithm.local_initialisation": False})


def fixed_size(where: SettingFilter) -> SettingFilter:
    """With subsets of a fixed size instead of Poisson ones."""
    return where.but(", fixed-size subsets", {"privacy.sampling": "fixed_size"})


def non_adaptive(where: SettingFilter) -> SettingFilter:
    """With weights that stay concentrated for the whole run."""
    return where.but(", non-adaptive weights", {"weights.decay.hold": _is_none})


def _is_none(value: object) -> bool:
    return value is None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
