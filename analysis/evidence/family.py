"""The algorithms that claims are about, by what makes them so (not by the name they were run under), and the claim."""

from dataclasses import dataclass, replace

from analysis.evidence.comparisons import EPSILON, BetterThanAll, Contrast, Test
from analysis.evidence.selection import Case, Measure, Where

PAPER, PROTOTYPE, CONTROL, OWN = "paper", "prototype", "control", "own"
SOURCES = (PAPER, PROTOTYPE, CONTROL, OWN)


@dataclass(frozen=True)
class Claim:
    """A published claim, a finding of a prototype, or of ours: a control of sharing, or another; and its test.

    published: what was seen, in words and numbers. case: the problem and size it was seen at.
    """

    id: str
    experiment: str
    figure: str
    case: Case
    claim: str
    published: str
    test: Test
    source: str = PAPER

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source must be one of {', '.join(SOURCES)}, got {self.source!r}")

    @property
    def tested(self) -> tuple[Case, Test]:
        """What is tested, equal for claims of several figures that ask the same; an epsilon needs no data."""
        return replace(self.case, variant=()) if self.test.form == EPSILON else self.case, self.test

    @property
    def contrary(self) -> tuple[Case, Test] | None:
        """What is tested by a claim of the contrary; None where there is no such thing."""
        return (self.case, self.test.reversed()) if isinstance(self.test, Contrast) else None


def _named(words: str, server: str, private: bool, P: int | None, **more: object) -> Where:
    keys = {"algorithm.server": server, "algorithm.private": private, **more}
    return Where(words, tuple((keys if P is None else {**keys, "algorithm.P": P}).items()))


def ts() -> Where:
    """Local Thompson sampling."""
    return _named("TS", "none", False, None, **{"algorithm.follow": "never"})


def fts(P: int = 1) -> Where:
    """FTS (P = 1) or FTS-DE, not private."""
    return _named("FTS" if P == 1 else f"FTS-DE, P = {P}", "aggregate", False, P)


def dp(P: int, q: float, z: float, S: float | None = None) -> Where:
    """DP-FTS (P = 1) or DP-FTS-DE. S: None for whatever the problem's preset says."""
    words = f"{'DP-FTS' if P == 1 else f'DP-FTS-DE, P = {P}'}, q = {q:g}, z = {z:g}"
    where = _named(words, "aggregate", True, P, **{"privacy.q": q, "privacy.z": z})
    return where if S is None else where.but(f", S = {S:g}", {"privacy.S": S})


def controls(P: int) -> tuple[Where, ...]:
    """The server branch replaced by random and by Sobol queries, at the same P: what federation must beat."""
    regions = f", P = {P}" if P > 1 else ""
    return tuple(
        _named(f"{words} server{regions}", kind, False, P) for kind, words in (("random", "random"), ("sobol", "Sobol"))
    )


def sharing_helps(where: Where, blind: tuple[Where, ...], measure: Measure) -> tuple[str, str, Test, str]:
    """The claim that a setting beats its controls: words, what was published, test, source."""
    words = f"Sharing helps: {where.words} beats blind servers"
    return words, "not tested there", BetterThanAll(where, blind[0], blind[1:], measure), CONTROL


def following(where: Where, rule: str) -> Where:
    """With another 1 - p_t than the problem's preset."""
    formula = {"inverse_sqrt": "1/√t", "inverse": "1/t", "inverse_square": "1/t²"}[rule]
    return where.but(f", 1 − p_t = {formula}", {"algorithm.follow": rule})


def anywhere(where: Where) -> Where:
    """With initial points in the whole domain instead of the agent's own sub-region."""
    return where.but(", initial points anywhere", {"algorithm.local_initialisation": False})


def fixed_size(where: Where) -> Where:
    """With subsets of a fixed size instead of Poisson ones."""
    return where.but(", fixed-size subsets", {"privacy.sampling": "fixed_size"})


def non_adaptive(where: Where) -> Where:
    """With weights that stay concentrated for the whole run."""
    return where.but(", non-adaptive weights", {"weights.decay.hold": _is_none})


def _is_none(value: object) -> bool:
    return value is None
