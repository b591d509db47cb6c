"""The claims of the paper on its synthetic problem, figure by figure, with a reimplementation's findings beside them.

Wording after the published figures' message. What is measured is stated with each claim; the mean over rounds 1..T is
the choice where a figure shows whole curves. Sizes: App. B.1.1 (N = 200, T = 40) and B.1.4 (N = 50).
"""

from collections.abc import Callable, Iterable

from analysis.evidence import published_numbers
from analysis.evidence.agreement import Agreement, Printed
from analysis.evidence.claim import PAPER, REIMPLEMENTATION, StatedClaim
from analysis.evidence.comparisons import ClaimTest, better, between, trend
from analysis.evidence.federated_settings import anywhere, controls, dp, following, fts, non_adaptive, sharing_helps, ts
from analysis.evidence.margins import NoWorse
from analysis.evidence.selection import LATE, OVERALL, Case, Measure, SettingFilter
from analysis.evidence.verdicts import PublishedMean

SYNTHETIC = Case("synthetic", 200, 40, "simple_regret")
RUNS = 5  # of a published synthetic curve

CLIPPED = Measure("clipped messages in % of the chosen ones", lambda run: 100 * run.summary["clip_fraction"])

DP_FTS = dp(1, 0.25, 1, 8)
STANDARD = dp(2, 0.25, 1, 11)  # DP-FTS-DE as most figures have it
RULES = ("inverse_sqrt", "inverse", "inverse_square")


def claims() -> tuple[StatedClaim, ...]:
    """All of them, in the order of the figures."""
    parts = (_fig2a(), _fig2b(), _fig2c(), _fig2d(), _fig4(), _fig5(), _fig6(), _fig7(), _fig12a(), _control())
    return tuple(claim for part in parts for claim in part)


def _claim(
    experiment: str, name: str, words: str, published: str, test: ClaimTest, source: str = PAPER, case: Case = SYNTHETIC
) -> StatedClaim:
    figure = "control" if experiment == "control" else f"Fig. {experiment.removeprefix('fig')}"
    return StatedClaim(f"{experiment}.{name}", experiment, figure, case, words, published, test, source)


def _reimplementation_curve(experiment: str, name: str, where: SettingFilter, setting: str) -> StatedClaim:
    test = Agreement(where, published_numbers.reimplementation_curve(setting))
    return _claim(
        experiment, f"reimplementation_{name}", f"{where.words}: the regret is that of an independent implementation",
        "its curve ± SE over 15 functions", test, REIMPLEMENTATION,
    )  # fmt: skip


def _shared_helps(
    experiment: str, name: str, where: SettingFilter, blind: tuple[SettingFilter, ...], case: Case = SYNTHETIC
) -> StatedClaim:
    return _claim(experiment, f"control_{name}", *sharing_helps(where, blind, OVERALL), case)


def _epsilons(experiment: str, of: Callable[[published_numbers.PrivacyLoss], bool]) -> Iterable[StatedClaim]:
    for row in filter(of, published_numbers.privacy_losses("synthetic")):
        words = f"The privacy loss at q = {row.q:g}, z = {row.z:g} is the published one"
        test = Printed(dp(2, row.q, row.z, 11), row.epsilon)
        yield _claim(experiment, f"epsilon_q{row.q:g}_z{row.z:g}", words, f"{row.epsilon:.2f}", test)


def _fig2a() -> Iterable[StatedClaim]:
    yield _claim(
        "fig2a", "fts_beats_ts", "FTS beats TS", "FTS lower (reimplementation: by 4.7 SE)", better(fts(), ts(), OVERALL)
    )
    for P in (2, 3, 4):
        test = better(fts(P), fts(), OVERALL)
        yield _claim("fig2a", f"de{P}_beats_fts", f"FTS-DE with P = {P} beats FTS", "FTS-DE lower", test)
    yield _shared_helps("fig2a", "fts", fts(), controls(1))
    yield _shared_helps("fig2a", "de2", fts(2), controls(2))
    test = trend([fts(P) for P in (4, 3, 2)], OVERALL)
    yield _claim("fig2a", "more_regions", "FTS-DE gets better from P = 2 to 3 to 4", "lower with P", test)
    for name, where, setting in (
        ("ts", ts(), "TS"), ("fts", fts(), "FTS"), ("de2", fts(2), "FTS-DE P2"), ("de3", fts(3), "FTS-DE P3")
    ):  # fmt: skip
        yield _reimplementation_curve("fig2a", name, where, setting)


def _fig2b() -> Iterable[StatedClaim]:
    small, large = dp(2, 0.25, 1, 3), dp(2, 0.25, 1, 40)
    yield _claim(
        "fig2b", "small_hurts", "A too small S hurts: S = 11 beats S = 3", "S = 11 lower",
        better(STANDARD, small, OVERALL),
    )  # fmt: skip
    yield _claim(
        "fig2b", "large_hurts", "A too large S hurts: S = 11 beats S = 40", "S = 11 lower",
        better(STANDARD, large, OVERALL),
    )  # fmt: skip
    for S, name in ((3, "small_harmless"), (6, "small_harmless_s6")):
        yield _claim(
            "fig2b", name, f"A small S does not hurt: S = {S} is at most 5 % above S = 11", "never hurts",
            NoWorse(dp(2, 0.25, 1, S), STANDARD, 0.05, OVERALL), REIMPLEMENTATION,
        )  # fmt: skip
    yield _claim(
        "fig2b", "clipped", "S = 11 clips about 0.8 %",
        "0.80 % (reimplementation: 0.8 to 2.1 % by the draw of the features)",
        Agreement(STANDARD, ((CLIPPED, PublishedMean(0.80, None, RUNS)),)),
    )  # fmt: skip
    for S in (3, 6, 11, 15, 22, 40):
        yield _shared_helps("fig2b", f"s{S}", dp(2, 0.25, 1, S), controls(2))


def _fig2c() -> Iterable[StatedClaim]:
    qs = (0.5, 0.25, 0.15)
    test = trend([dp(2, q, 1, 11) for q in qs], OVERALL)
    yield _claim(
        "fig2c",
        "larger_q",
        "A larger q is better: 0.5, 0.25, 0.15",
        "lower with q (reimplementation: 3 to 5 SE)",
        test,
    )
    yield from _epsilons("fig2c", lambda row: row.z == 1)
    for q in qs:
        yield _shared_helps("fig2c", f"q{q:g}", dp(2, q, 1, 11), controls(2))
    yield _reimplementation_curve("fig2c", "q0.25", STANDARD, "DP-FTS-DE P2 q.25 z1 S11")
    yield _reimplementation_curve("fig2c", "q0.15", dp(2, 0.15, 1, 11), "DP-FTS-DE P2 q.15 z1 S11")


def _fig2d() -> Iterable[StatedClaim]:
    zs = (1.0, 1.2, 1.5)
    test = trend([dp(2, 0.25, z, 11) for z in zs], OVERALL)
    yield _claim(
        "fig2d",
        "smaller_z",
        "A smaller z is better: 1, 1.2, 1.5",
        "higher with z (reimplementation: 3 to 5 SE)",
        test,
    )
    yield from _epsilons("fig2d", lambda row: row.q == 0.25)
    for z in zs:
        yield _shared_helps("fig2d", f"z{z:g}", dp(2, 0.25, z, 11), controls(2))
    yield _reimplementation_curve("fig2d", "z1.2", dp(2, 0.25, 1.2, 11), "DP-FTS-DE P2 q.25 z1.2 S11")


def _fig4() -> Iterable[StatedClaim]:
    yield _claim(
        "fig4", "de_helps", "DE helps under DP: DP-FTS-DE (P = 2, S = 11) beats DP-FTS (S = 8)", "DP-FTS-DE lower",
        better(STANDARD, DP_FTS, OVERALL),
    )  # fmt: skip
    yield _claim(
        "fig4", "de_hurts", "DP-FTS (S = 8) beats DP-FTS-DE (P = 2, S = 11) at the same privacy",
        "DP-FTS lower by 3.7 SE", better(DP_FTS, STANDARD, OVERALL), REIMPLEMENTATION,
    )  # fmt: skip
    yield _claim(
        "fig4", "clipped", "S = 8 at P = 1 clips 0.31 %", "0.31 % (reimplementation: 0.3 to 0.9 %)",
        Agreement(DP_FTS, ((CLIPPED, PublishedMean(0.31, None, RUNS)),)),
    )  # fmt: skip
    yield _shared_helps("fig4", "dp_fts", DP_FTS, controls(1))
    yield _shared_helps("fig4", "dp_fts_de", STANDARD, controls(2))
    yield _reimplementation_curve("fig4", "dp_fts", DP_FTS, "DP-FTS q.25 z1 S8")


def _fig5() -> Iterable[StatedClaim]:
    no_weights = STANDARD.but(", uniform weights", {"weights._target_": "Uniform"})
    for name, words, other in (
        ("weights", "The weights matter: DP-FTS-DE beats itself with uniform weights", no_weights),
        ("initialisation", "Local initialisation matters: DP-FTS-DE beats itself without", anywhere(STANDARD)),
    ):
        yield _claim("fig5", name, words, "whole DE lower", better(STANDARD, other, OVERALL))
    yield _shared_helps("fig5", "dp_fts_de", STANDARD, controls(2))
    yield _shared_helps("fig5", "no_weights", no_weights, controls(2))
    blind = tuple(anywhere(server) for server in controls(2))
    yield _shared_helps("fig5", "no_initialisation", anywhere(STANDARD), blind)


def _fig6() -> Iterable[StatedClaim]:
    by_P = {P: dp(P, 0.25, 1, 11) for P in (1, 2, 3, 4)}
    for P, words in ((1, "none are too few"), (4, "4 are too many")):
        yield _claim(
            "fig6", f"not_p{P}", f"A trade-off in P: 2 or 3 sub-regions (their mean) beat P = {P}, {words}",
            "trade-off", between((by_P[2], by_P[3]), by_P[P], OVERALL),
        )  # fmt: skip
    for P, where in by_P.items():
        yield _shared_helps("fig6", f"p{P}", where, controls(P))


def _fig7() -> Iterable[StatedClaim]:
    for experiment, alpha in (("fig7a", 0.7), ("fig7b", 1.0)):
        case = Case("synthetic_heterogeneous", 50, 40, "simple_regret", (("alpha", alpha),))
        for rule in RULES:
            where = following(fts(2), rule)
            yield _claim(
                experiment, f"{rule}_beats_ts", f"Robust to heterogeneity α = {alpha:g}: {where.words}, beats TS",
                "FTS-DE lower", better(where, ts(), OVERALL), case=case,
            )  # fmt: skip
            blind = tuple(following(server, rule) for server in controls(2))
            yield _shared_helps(experiment, rule, where, blind, case)
        slow, fast = following(fts(2), "inverse_sqrt"), following(fts(2), "inverse_square")
        yield _claim(
            experiment, "faster_decay", "Agents that differ should follow the server less: 1 − p_t = 1/t² beats 1/√t",
            "faster decay lower", better(fast, slow, OVERALL), case=case,
        )  # fmt: skip
        if alpha == 0.7:
            yield _claim(
                experiment, "worse_than_ts", "At α = 0.7 FTS-DE with 1 − p_t = 1/√t is worse than TS", "FTS-DE higher",
                better(ts(), slow, OVERALL), REIMPLEMENTATION, case,
            )  # fmt: skip


def _fig12a() -> Iterable[StatedClaim]:
    yield _claim(
        "fig12a", "adaptive", "Weights that become uniform beat non-adaptive ones late",
        "adaptive lower (reimplementation: 5 SE)", better(STANDARD, non_adaptive(STANDARD), LATE),
    )  # fmt: skip
    yield _shared_helps("fig12a", "adaptive", STANDARD, controls(2))
    yield _shared_helps("fig12a", "non_adaptive", non_adaptive(STANDARD), controls(2))


def _control() -> Iterable[StatedClaim]:
    for P, S, q, z in (
        *((P, S, q, 1.0) for P, S in ((1, 8), (2, 11)) for q in (0.15, 0.25, 0.5)),
        *((P, S, 0.25, z) for P, S in ((1, 8), (2, 11)) for z in (1.2, 1.5)),
        (3, 11, 0.25, 1.0),
        (4, 11, 0.25, 1.0),
    ):
        yield _shared_helps("control", f"p{P}_q{q:g}_z{z:g}", dp(P, q, z, S), controls(P))
    random, _ = controls(1)
    yield _reimplementation_curve("control", "random", random, "random server")
