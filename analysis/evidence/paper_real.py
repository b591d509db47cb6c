"""The claims of the paper on real data, figure by figure, with a reimplementation's findings beside them.

Fig. 3a-c plot what is reached after 60 iterations (`LAST`), 3d-f whole curves. Published landmine numbers use the Platt
score and are compared with runs of that score only; the margin score is the one of all other landmine experiments.
"""

import math
from collections.abc import Iterable

from analysis.evidence import published_numbers
from analysis.evidence.agreement import Agreement, Printed
from analysis.evidence.claim import PAPER, REIMPLEMENTATION, StatedClaim
from analysis.evidence.comparisons import ClaimTest, better, trend
from analysis.evidence.federated_settings import controls, dp, fixed_size, fts, non_adaptive, sharing_helps, ts
from analysis.evidence.margins import CheaperThan, Equivalent
from analysis.evidence.selection import LAST, LATE, OVERALL, Case, Measure, SettingFilter
from analysis.evidence.verdicts import PublishedMean
from analysis.load import Run

MARGIN = Case("landmine", 29, 60, "one_minus_auc", (("score", "margin"),))
PLATT = Case("landmine", 29, 60, "one_minus_auc", (("score", "platt"),))
ACTIVITY = Case("activity_", 30, 60, "validation_error", (("scale", "log"),))
ACTIVITY_LINEAR = Case("activity_", 30, 60, "validation_error", (("scale", "linear"),))
DIGITS = Case("digits_", 50, 60, "validation_error")

LITTLE = 0.013  # of 1 - AUC: half of what FTS-DE gains on TS in Fig. 3a (0.0061 of 0.2314)

# The reimplementation read the margin score from a table, about .004 above fitting on demand: its error, a guess
TABLE_OFFSET, TABLE_ERROR = 0.004, 0.001

STANDARD = dp(4, 0.35, 1, 22)
DP_FTS = dp(1, 0.35, 1, 11)
ZS = (1.0, 1.6, 2.0, 3.0, 4.0)
QS = (0.35, 0.25, 0.2, 0.15, 0.1)


def _optimiser_seconds(run: Run) -> float:
    s = run.summary
    return (s["seconds"]["total"] - s["seconds"]["objective"]) / (s["n_agents"] * s["rounds"])


SECONDS = Measure("seconds per query without the objective's own, on this machine", _optimiser_seconds)


def claims() -> tuple[StatedClaim, ...]:
    """All of them, in the order of the figures."""
    parts = (
        _trade_off("fig3_landmine", "Fig. 3a, 3d (margin score)", MARGIN),
        _margin_reimplementation(),
        _trade_off("fig3_landmine_platt", "Fig. 3a, 3d (Platt score)", PLATT),
        _platt_curves(),
        _trade_off("fig3_activity", "Fig. 3b, 3e (log axes)", ACTIVITY),
        _trade_off("fig3_activity_linear", "Fig. 3b, 3e (linear axes)", ACTIVITY_LINEAR),
        _trade_off("fig3_digits", "Fig. 3c, 3f", DIGITS),
        _landmine_variants(),
    )
    return tuple(claim for part in parts for claim in part)


def _trade_off(experiment: str, figure: str, case: Case) -> Iterable[StatedClaim]:
    """The claims of Fig. 3 about every data set. Its claims end with the metric after T rounds, but for one."""

    def claim(name: str, words: str, published: str, test: ClaimTest, source: str = PAPER) -> StatedClaim:
        return StatedClaim(f"{experiment}.{name}", experiment, figure, case, words, published, test, source)

    S = 22.0 if case.N == 29 else None
    for name, words, good, bad, columns in (
        ("fts_de_beats_ts", "FTS-DE beats TS", fts(4), ts(), ("TS", "FTS-DE", None)),
        ("fts_de_beats_fts", "FTS-DE beats FTS", fts(4), fts(), ("FTS", "FTS-DE", None)),
        ("dp_beats_ts", "DP-FTS-DE (q = 0.35, z = 1) beats TS", dp(4, 0.35, 1, S), ts(), ("TS", "DP-FTS-DE", 1.0)),
        (
            "single_digit", "At a single-digit ε (q = 0.35, z = 2) DP-FTS-DE still beats TS",
            dp(4, 0.35, 2, S), ts(), ("TS", "DP-FTS-DE", 2.0),
        ),
    ):  # fmt: skip
        gain = published_numbers.landmine_gain(*columns) if case == PLATT else None
        published = "lower" if gain is None else f"lower by {gain.value:.4f} ± {gain.se:.4f}"
        yield claim(name, words, published, better(good, bad, LAST))
    yield claim("fts_de_faster", "FTS-DE beats TS over the whole run", "lower", better(fts(4), ts(), OVERALL))
    yield claim(
        "smaller_z", "A smaller z is better: 1, 1.6, 2, 3, 4 at q = 0.35", "higher with z",
        trend([dp(4, 0.35, z, S) for z in ZS], LAST),
    )  # fmt: skip
    yield claim(
        "larger_q", "A larger q is better: 0.35, 0.25, 0.2, 0.15, 0.1 at z = 1", "lower with q",
        trend([dp(4, q, 1, S) for q in QS], LAST),
    )  # fmt: skip
    if case.N == 29:
        for row in published_numbers.privacy_losses("landmine"):
            words = f"The privacy loss at q = {row.q:g}, z = {row.z:g} is the published one"
            yield claim(
                f"epsilon_z{row.z:g}", words, f"{row.epsilon:.2f}", Printed(dp(4, row.q, row.z, S), row.epsilon)
            )
    for q, z in (*((0.35, z) for z in ZS), *((q, 1.0) for q in QS[1:])):
        where = dp(4, q, z, S)
        yield claim(f"control_q{q:g}_z{z:g}", *sharing_helps(where, controls(4), LAST))


def _platt_curves() -> Iterable[StatedClaim]:
    """Published landmine numbers, point by point."""
    for name, where, points in (
        ("ts", ts(), published_numbers.landmine_curve("TS")),
        ("fts", fts(), published_numbers.landmine_last("FTS")),
        ("fts_de", fts(4), published_numbers.landmine_curve("FTS-DE")),
        ("dp_z1", STANDARD, published_numbers.landmine_curve("DP-FTS-DE_q0.35_z1")),
        ("dp_z2", dp(4, 0.35, 2, 22), published_numbers.landmine_curve("DP-FTS-DE_q0.35_z2")),
        ("dp_z4", dp(4, 0.35, 4, 22), published_numbers.landmine_last("DP-FTS-DE", 4.0)),
        ("dp_q0.25", dp(4, 0.25, 1, 22), published_numbers.landmine_curve("DP-FTS-DE_q0.25_z1")),
    ):
        yield StatedClaim(
            f"fig3_landmine_platt.curve_{name}", "fig3_landmine_platt", "Fig. 3a, 3d (Platt score)", PLATT,
            f"{where.words}: 1 − AUC is the published one", f"{len(points)} point{'s' * (len(points) > 1)}, ± 0.0027",
            Agreement(where, points),
        )  # fmt: skip


def _margin_reimplementation() -> Iterable[StatedClaim]:
    """A reimplementation's values, after 60 iterations, and its finding that the broadcasts carry nothing."""

    def claim(name: str, words: str, published: str, test: ClaimTest) -> StatedClaim:
        return StatedClaim(
            f"fig3_landmine.reimplementation_{name}", "fig3_landmine", "Fig. 3a, 3d (margin score)", MARGIN, words,
            published, test, REIMPLEMENTATION,
        )  # fmt: skip

    random, _ = controls(4)
    for name, where, value, se in (
        ("ts", ts(), 0.2252, 0.0008),
        ("fts_de", fts(4), 0.2262, 0.0008),
        ("dp", STANDARD, 0.2248, 0.0010),
        ("random", random, 0.2262, 0.0005),
    ):
        expected = PublishedMean(value - TABLE_OFFSET, math.hypot(se, TABLE_ERROR), 10)
        yield claim(
            name, f"{where.words}: 1 − AUC is that of the reimplementation, less what its table added",
            f"{value:.4f} ± {se:.4f}, less {TABLE_OFFSET:g} ± {TABLE_ERROR:g}", Agreement(where, ((LAST, expected),)),
        )  # fmt: skip
    yield claim(
        "level", f"{STANDARD.words} is level with a random server", "level", Equivalent(STANDARD, random, LITTLE, LAST)
    )
    yield claim(
        "z", "z makes no difference: 4 against 1", "none", Equivalent(dp(4, 0.35, 4, 22), STANDARD, LITTLE, LAST)
    )


def _landmine_variants() -> Iterable[StatedClaim]:
    """Fig. 8 to 12 and the cost, all on landmine."""

    def claim(
        experiment: str, name: str, words: str, published: str, test: ClaimTest, source: str = PAPER
    ) -> StatedClaim:
        figure = "cost" if experiment == "cost" else f"Fig. {experiment.removeprefix('fig')}"
        return StatedClaim(f"{experiment}.{name}", experiment, figure, MARGIN, words, published, test, source)

    yield claim(
        "fig8", "de_helps", "DE helps under DP: DP-FTS-DE (P = 4, S = 22) beats DP-FTS (S = 11)", "DP-FTS-DE lower",
        better(STANDARD, DP_FTS, OVERALL),
    )  # fmt: skip
    for number, where in WEIGHTINGS.items():
        words = f"Weighting {number} does as well as the standard one"
        yield claim("fig9", f"weighting{number}", words, "comparable", Equivalent(where, STANDARD, LITTLE, OVERALL))
    for P in (2, 3, 6):
        words, test = f"P = {P} does as well as P = 4", Equivalent(dp(P, 0.35, 1, 22), STANDARD, LITTLE, OVERALL)
        yield claim("fig10", f"p{P}", words, "comparable", test)
    yield claim(
        "fig11", "fixed_size", "Subsets of a fixed size do as well as Poisson ones", "comparable",
        Equivalent(fixed_size(STANDARD), STANDARD, LITTLE, OVERALL),
    )  # fmt: skip
    yield claim(
        "fig11", "beats_ts", "With subsets of a fixed size DP-FTS-DE beats TS", "DP-FTS-DE lower",
        better(fixed_size(STANDARD), ts(), OVERALL),
    )  # fmt: skip
    yield claim(
        "fig11", "smaller_z", "A smaller z is better with subsets of a fixed size: 1, 2, 4", "higher with z",
        trend([fixed_size(dp(4, 0.35, z, 22)) for z in (1, 2, 4)], OVERALL),
    )  # fmt: skip
    yield claim(
        "fig12b", "adaptive", "Weights that become uniform beat non-adaptive ones late", "adaptive lower",
        better(STANDARD, non_adaptive(STANDARD), LATE),
    )  # fmt: skip
    for experiment, name, where, P in _with_controls():
        yield claim(experiment, f"control_{name}", *sharing_helps(where, controls(P), OVERALL))
    yield claim(
        "cost", "p4", "A query at P = 4 costs at most 1.24 times one at P = 1", "1.24 times",
        CheaperThan(STANDARD, dp(1, 0.35, 1, 22), 1.24, SECONDS),
    )  # fmt: skip


WEIGHTINGS = {
    1: STANDARD.but(", weighting 1", {"weights.a": 9.0}),
    2: STANDARD.but(", weighting 2", {"weights._target_": "Power", "weights.c": 1000.0, "weights.exponent": 1.0}),
    3: STANDARD.but(", weighting 3", {"weights._target_": "Power", "weights.c": 40.0, "weights.exponent": 2.0}),
}


def _with_controls() -> Iterable[tuple[str, str, SettingFilter, int]]:
    """Experiment, name, private setting and its P."""
    yield "fig8", "dp_fts", DP_FTS, 1
    yield "fig8", "dp_fts_de", STANDARD, 4
    yield "fig9", "standard", STANDARD, 4
    for number, where in WEIGHTINGS.items():
        yield "fig9", f"weighting{number}", where, 4
    for P in (2, 3, 4, 6):
        yield "fig10", f"p{P}", dp(P, 0.35, 1, 22), P
    yield "fig11", "poisson", STANDARD, 4
    for z in (1, 2, 4):
        yield "fig11", f"fixed_size_z{z}", fixed_size(dp(4, 0.35, z, 22)), 4
    yield "fig12b", "adaptive", STANDARD, 4
    yield "fig12b", "non_adaptive", non_adaptive(STANDARD), 4
