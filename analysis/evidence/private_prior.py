"""Own claims about the private prior: one release against the methods that release in every round, and TS.

`few_*`: three initial points, then 10 or 20 rounds. The means are over these rounds; settings that do not depend on T
were run for 20 rounds only, and count as runs of 10 by their first 10. `frontier`: the synthetic problem of the paper.
Where the objectives share nothing (alpha = 1) or little (0.7), the claim about TS is that the prior does no harm.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from analysis.evidence.claim import OWN, StatedClaim
from analysis.evidence.comparisons import ClaimTest, better
from analysis.evidence.federated_settings import controls, dp_at, fts, prior, sharing_helps, ts
from analysis.evidence.margins import NoWorse
from analysis.evidence.selection import OVERALL, Case, Measure, SettingFilter, first_rounds

EPSILON = 1.0
LENGTHS = (10, 20)  # T
LITTLE = 0.03  # of TS's regret, that sharing may cost where nothing is shared
UNPUBLISHED = "not published"
FEW = "few evaluations"


@dataclass(frozen=True)
class FewProblem:
    """A problem of `experiment=few`.

    case: at T = 20. P: sub-regions of DE. lengthscale: of the family's shared features, None for the preset's. shared:
    "much" where the prior is claimed to beat TS, "little" where it is claimed to do no harm besides, "nothing" where
    that is all. de: whether it is claimed to beat FTS-DE without privacy.
    """

    name: str
    experiment: str
    case: Case
    P: int = 4
    lengthscale: float | None = None
    shared: str = "much"
    de: bool = False


def _synthetic(alpha: float, shared: str) -> FewProblem:
    case = Case("synthetic_heterogeneous", 50, 20, "simple_regret", (("alpha", alpha),))
    return FewProblem(f"synthetic, α = {alpha:g}", "few_synthetic", case, P=2, shared=shared, de=shared == "much")


def _botorch(function: str) -> FewProblem:
    case = Case("botorch", 20, 20, "simple_regret", (("function", function),))
    return FewProblem(function, "few_botorch", case)


PROBLEMS = (
    _synthetic(0.0, "much"),
    _synthetic(0.3, "much"),
    _synthetic(0.7, "little"),
    _synthetic(1.0, "nothing"),
    FewProblem("landmine", "few_landmine", Case("landmine", 29, 20, "one_minus_auc"), lengthscale=0.3),
    FewProblem("activity", "few_activity", Case("activity_", 30, 20, "validation_error"), lengthscale=0.3),
    FewProblem("digits", "few_digits", Case("digits_", 50, 20, "validation_error"), lengthscale=0.3),
    FewProblem("school", "few_school", Case("school", 139, 20, "nmse")),
    _botorch("Hartmann"),
    _botorch("Branin"),
)


def claims() -> tuple[StatedClaim, ...]:
    """All of them."""
    few = (claim for problem in PROBLEMS for T in LENGTHS for claim in _few(problem, T))
    return (*_frontier(), *few)


def _few(problem: FewProblem, T: int) -> Iterable[StatedClaim]:
    longest = max(LENGTHS)
    case = Case(problem.case.problem, problem.case.N, T, problem.case.metric, problem.case.variant, longest)
    features = {} if problem.lengthscale is None else {"algorithm.lengthscale": problem.lengthscale}

    def once(where: SettingFilter, **more: float) -> SettingFilter:
        return where.but("", {"n_init": 3, "rounds": longest, **more})

    def at_T(where: SettingFilter) -> SettingFilter:
        return where.but("", {"n_init": 3, "rounds": T, **features})

    blind = tuple(once(server) for server in controls(problem.P))
    de = once(fts(problem.P), **features) if problem.de else None
    over = first_rounds(T)
    private = [at_T(dp_at(problem.P, EPSILON, plus)) for plus in (False, True)]
    mine, local = once(prior(EPSILON)), once(ts())
    name = "_".join([*(f"{value:g}" if isinstance(value, float) else value for _, value in case.variant), f"t{T}"])
    for end, words, test, source in _compared(mine, local, blind, de, private, over, problem.shared):
        yield StatedClaim(
            f"{problem.experiment}.{name}_{end}", problem.experiment, f"{FEW}: {problem.name}", case, words,
            UNPUBLISHED, test, source,
        )  # fmt: skip


def _frontier() -> Iterable[StatedClaim]:
    case, private = Case("synthetic", 200, 40, "simple_regret"), [dp_at(2, EPSILON, plus) for plus in (False, True)]
    for end, words, test, source in _compared(prior(EPSILON), ts(), controls(2), fts(2), private, OVERALL, "much"):
        yield StatedClaim(f"frontier.{end}", "frontier", "frontier", case, words, UNPUBLISHED, test, source)


def _compared(
    mine: SettingFilter, local: SettingFilter, blind: tuple[SettingFilter, ...], de: SettingFilter | None,
    private: Iterable[SettingFilter], measure: Measure, shared: str,
) -> Iterable[tuple[str, str, ClaimTest, str]]:  # fmt: skip
    """The end of the id, words, test and source of each claim about `mine` on one problem.

    local: TS. blind: the controls. de: FTS-DE without privacy, None to leave it out. private: those that release in
    every round.
    """
    if shared != "nothing":
        yield "ts", f"The {mine.words}, beats TS", better(mine, local, measure), OWN
        words, _, test, source = sharing_helps(mine, blind, measure)
        yield "control", words, test, source
    if shared != "much":
        words = f"The {mine.words}, is at most {100 * LITTLE:g} % above TS"
        yield "no_harm", words, NoWorse(mine, local, LITTLE, measure), OWN
    for k, where in enumerate(private):
        name = ("dp_fts_de", "dp_fts_de_plus")[k]
        yield name, f"The {mine.words}, beats {where.words}", better(mine, where, measure), OWN
    if de is not None:
        words = f"The {mine.words}, beats {de.words}, without privacy"
        yield "fts_de", words, better(mine, de, measure), OWN
