"""Claims about outsourced optimisation: the published Table 1, a reimplementation's numbers, and what we ask beside.

The published algorithm's epsilon is a claim and no guarantee; the words say "claimed ε" wherever it is one. Bands are
for another function in each run, where Table 1 has one function: about the published numbers, as wide as functions
differ. That a number of the table "is the published one" can hence hardly be shown: the bands carry it. Sizes: Sec. 5
of the paper, with 50 rounds, property 100, Branin-Hoo 20.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.evidence import published_numbers
from analysis.evidence.agreement import Agreement
from analysis.evidence.bands import inside, worse_by
from analysis.evidence.claim import OWN, PAPER, REIMPLEMENTATION, StatedClaim
from analysis.evidence.comparisons import ClaimTest, better, trend
from analysis.evidence.outsourced_settings import cover, gaussian, gp_ucb, histogram, po, random_rows
from analysis.evidence.selection import LAST, Case, SettingFilter
from analysis.evidence.verdicts import PublishedMean

GRID = (("side_points", 100), ("side", 8), ("lengthscale", 1.25), ("noise_variance", 1e-5))
SYNTHETIC = Case("grid_gp", 1, 50, "simple_regret", GRID)
TABLE, SECTION, BESIDE = "Table 1", "Sec. 5", "beside Table 1"

ONE = " (one function)"

E11 = math.exp(1.1)
CLAIMED = tuple(math.exp(k) for k in (1.1, 1.5, 2.0, 2.5))
BEST_R = 10  # of Table 1
RAISED = (15, 20)  # there sigma_min < w, and singular values are raised
EPSILONS = tuple(math.exp(k) for k in (0.0, 0.5, 1.1, 1.5))  # guaranteed ones


@dataclass(frozen=True)
class Dataset:
    """An experiment without published numbers here. r: that the claimed epsilons are run at; epsilons: guaranteed."""

    experiment: str
    figure: str
    case: Case
    r: int
    epsilons: tuple[float, ...]
    both: float  # claimed and guaranteed


DATASETS = (
    Dataset("po_loans", "Loans", Case("loans", 1, 50, "simple_regret"), 15, (1.0, E11, CLAIMED[-1]), CLAIMED[-1]),
    Dataset(
        "po_property", "Property", Case("property_", 1, 100, "simple_regret"), 15, (1.0, E11, CLAIMED[-1]), CLAIMED[-1]
    ),
    Dataset("po_branin", "Branin-Hoo", Case("branin_grid", 1, 20, "simple_regret"), 10, EPSILONS, E11),
)


def claims() -> tuple[StatedClaim, ...]:
    """All of them."""
    parts = (_bands(), _table(), _reimplementation(), _own("po_synthetic", BESIDE, SYNTHETIC, EPSILONS, _by_r()))
    return (*(claim for part in parts for claim in part), *(claim for one in DATASETS for claim in _on(one)))


def _synthetic(name: str, figure: str, words: str, published: str, test: ClaimTest, source: str = PAPER) -> StatedClaim:
    return StatedClaim(f"po_synthetic.{name}", "po_synthetic", figure, SYNTHETIC, words, published, test, source)


def _by_r() -> list[SettingFilter]:
    return [po(r, E11) for r in (3, 6, 8, 10, 15, 20)]


def _bands() -> Iterable[StatedClaim]:
    best = po(BEST_R, E11)
    for name, where, low, high, published in (
        ("band_non_private", gp_ucb(), None, 0.03, "0.003"),
        ("band_r10", best, None, 0.04, "0.014"),
        ("band_r15", po(15, E11), 0.06, 0.16, "0.118"),
        ("band_r20", po(20, E11), 0.06, 0.16, "0.137"),
    ):
        raised = ", singular values raised," if name in [f"band_r{r}" for r in RAISED] else ""
        words = f"{where.words}{raised} lies in the band"
        yield _synthetic(name, TABLE, words, f"{published}{ONE}", inside(where, LAST, low, high))
    yield _synthetic(
        "jump", TABLE, "Raised singular values cost: r = 15 is worse than r = 10 at claimed ε = 3.00", f"0.104{ONE}",
        worse_by(0.05, po(15, E11), best, LAST),
    )  # fmt: skip
    yield _synthetic(
        "few_columns", TABLE, "Too few columns cost: r = 3 is worse than r = 10 at claimed ε = 3.00", f"0.059{ONE}",
        worse_by(0.02, po(3, E11), best, LAST),
    )  # fmt: skip


def published() -> list[tuple[str, SettingFilter, PublishedMean]]:
    """The settings of Table 1, on `SYNTHETIC`: a name, the setting, its regret after the last round."""
    found = []
    for row in published_numbers.po_gp_ucb_regrets("table1"):
        if row.r is None or row.epsilon is None:
            found.append(("non_private", gp_ucb(), row.mean))
        else:
            found.append((f"r{row.r}", po(row.r, row.epsilon), row.mean))
    return found


def _table() -> Iterable[StatedClaim]:
    for name, where, mean in published():
        yield _synthetic(
            f"table_{name}", TABLE, f"{where.words}: the regret is the published one", f"{mean.value:g}{ONE}",
            Agreement(where, ((LAST, mean),)),
        )  # fmt: skip
    yield _synthetic(
        "larger_claim", SECTION, "A larger claimed ε is better at r = 10: 12.18, 7.39, 4.48, 3.00", "lower with ε",
        trend([po(BEST_R, epsilon) for epsilon in CLAIMED[::-1]], LAST),
    )  # fmt: skip


def _reimplementation() -> Iterable[StatedClaim]:
    for row in published_numbers.po_gp_ucb_regrets("reimplementation"):
        if row.epsilon is None or row.noise_aware is None:
            where, name = random_rows(), "random_rows"
        else:
            where = gaussian(row.epsilon, row.noise_aware)
            name = f"{'aware' if row.noise_aware else 'unaware'}_{row.epsilon:.2f}"
        yield _synthetic(
            f"reimplementation_{name}", BESIDE, f"{where.words}: the regret is that of an independent implementation",
            f"{row.mean.value:g}", Agreement(where, ((LAST, row.mean),)), REIMPLEMENTATION,
        )  # fmt: skip
    for epsilon, published in ((1.0, "0.17 / 0.24"), (E11, "0.05 / 0.135"), (CLAIMED[1], "0.033 / 0.10")):
        aware, unaware = gaussian(epsilon), gaussian(epsilon, aware=False)
        yield _synthetic(
            f"aware_{epsilon:.2f}", BESIDE, f"To know the noise helps: {aware.words}, beats unaware", published,
            better(aware, unaware, LAST), REIMPLEMENTATION,
        )  # fmt: skip
    best_first = [gaussian(epsilon) for epsilon in (CLAIMED[1], E11, 1.0)]
    yield _synthetic(
        "gaussian_epsilon", BESIDE, "A larger ε is better on Gaussian rows (noise-aware): 4.48, 3.00, 1.00",
        "0.033 / 0.05 / 0.17", trend(best_first, LAST), REIMPLEMENTATION,
    )  # fmt: skip


def _own(
    experiment: str, figure: str, case: Case, epsilons: Sequence[float], projected: Sequence[SettingFilter]
) -> Iterable[StatedClaim]:
    """The claims that nobody published. epsilons: guaranteed; projected: settings of PO-GP-UCB."""

    def own(name: str, words: str, test: ClaimTest) -> StatedClaim:
        return StatedClaim(f"{experiment}.{name}", experiment, figure, case, words, "not tested there", test, OWN)

    for where in projected:
        keys = dict(where.keys)
        name = f"po_r{keys['transform.r']}_{keys['transform.epsilon'].value:.2f}"
        yield own(f"{name}_beats_random", f"{where.words}, beats random rows", better(where, random_rows(), LAST))
    for epsilon in epsilons:
        counts, rows = histogram(epsilon), gaussian(epsilon)
        name, stronger = f"{epsilon:.2f}", "guaranteed for more neighbours"
        words = f"{rows.words}, beats random rows"
        yield own(f"gaussian_{name}_beats_random", words, better(rows, random_rows(), LAST))
        words = f"At ε = {name} the histogram, {stronger}, beats Gaussian rows (noise-aware)"
        yield own(f"histogram_{name}_beats_gaussian", words, better(counts, rows, LAST))
        words = f"The histogram at ε = {name} beats the default cover (another number of cells, nothing released)"
        yield own(f"histogram_{name}_beats_cover", words, better(counts, cover(), LAST))


def _on(data: Dataset) -> Iterable[StatedClaim]:
    projected = [po(data.r, epsilon) for epsilon in CLAIMED]
    yield from _own(data.experiment, data.figure, data.case, data.epsilons, projected)

    def own(name: str, words: str, test: ClaimTest) -> StatedClaim:
        return StatedClaim(
            f"{data.experiment}.{name}", data.experiment, data.figure, data.case, words, "not tested there", test, OWN
        )

    falling = ", ".join(f"{epsilon:.2f}" for epsilon in CLAIMED[::-1])
    words = f"A larger claimed ε is better at r = {data.r}: {falling}"
    yield own("larger_claim", words, trend(projected[::-1], LAST))
    claimed = po(data.r, data.both)
    for name, other in (("gaussian", gaussian(data.both)), ("histogram", histogram(data.both))):
        words = f"What a guarantee costs: {claimed.words}, no guarantee, beats {other.words}, guaranteed"
        yield own(f"guarantee_{name}", words, better(claimed, other, LAST))
