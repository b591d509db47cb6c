"""A claim with its test, and what became of it."""

from dataclasses import dataclass, replace

from analysis.evidence.comparisons import EPSILON, ClaimTest, Contrast
from analysis.evidence.selection import Case

PAPER, REIMPLEMENTATION, CONTROL, OWN = "paper", "reimplementation", "control", "own"
SOURCES = (PAPER, REIMPLEMENTATION, CONTROL, OWN)


@dataclass(frozen=True)
class StatedClaim:
    """A published claim, a finding of a reimplementation, or of ours: a control of sharing, or another; and its test.

    A reimplementation is a program written independently of this one, whose numbers were not published.

    published: what was seen, in words and numbers. case: the problem and size it was seen at.
    """

    id: str
    experiment: str
    figure: str
    case: Case
    claim: str
    published: str
    test: ClaimTest
    source: str = PAPER

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source must be one of {', '.join(SOURCES)}, got {self.source!r}")

    @property
    def tested(self) -> tuple[Case, ClaimTest]:
        """The case and the test, equal for claims of several figures that ask the same; an epsilon needs no data."""
        return replace(self.case, variant=()) if self.test.form == EPSILON else self.case, self.test

    @property
    def contrary(self) -> tuple[Case, ClaimTest] | None:
        """The case and the test of the contrary claim; None where there is no such thing."""
        return (self.case, self.test.reversed()) if isinstance(self.test, Contrast) else None


@dataclass(frozen=True)
class JudgedClaim:
    """A claim and what became of it.

    source: "paper", "reimplementation", "control" or "own". published: what was seen there. ours: estimate ± standard
    error, a difference positive where it supports the claim. standard_errors: the estimate in its standard errors,
    positive in support; of a number to agree with, minus the distance; None where there is no error. units: what n
    counts.
    verdict: one of `analysis.evidence.verdicts.VERDICTS`. kind: "effect", "agreement", "epsilon", "control" or
    "own". form: of the test, "superiority", "margin", "band", "agreement" or "epsilon". repeats: id of an earlier claim
    with the same settings and test, or, of an own finding, with runs that are the same. reverse_of: id of the published
    claim of the contrary. Both empty where there is none. p: of the test that would make it hold; None where there was
    none.
    """

    id: str
    figure: str
    experiment: str
    claim: str
    source: str
    published: str
    ours: str
    standard_errors: float | None
    units: str
    verdict: str
    kind: str = "effect"
    form: str = "superiority"
    repeats: str = ""
    reverse_of: str = ""
    p: float | None = None
