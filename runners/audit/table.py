"""The audit of an outsourced table's release: checks, attacks, and reconstruction of its rows."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dpfbo.audit.bounds import CONFIDENCE, Claim, most_shown
from dpfbo.audit.release import checks, two_tables
from dpfbo.audit.release.reconstruction import Reconstruction, reconstructions
from dpfbo.audit.release.scores import in_table_order
from dpfbo.audit.release.two_tables import Attack, AttackResult
from dpfbo.audit.server.target import seeded
from dpfbo.formats.words import delta_in_symbols, delta_in_words, epsilon_in_words
from dpfbo.outsourced.transforms import NORM, Transform
from dpfbo.outsourced.transforms.gaussian import GaussianNoise
from dpfbo.outsourced.transforms.histogram import Histogram
from dpfbo.outsourced.transforms.plain import Plain
from dpfbo.outsourced.transforms.random_projection import RandomProjection
from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.entropy import SystemEntropy
from dpfbo.privacy.noise import DiscreteGaussian
from runners.audit import picture
from runners.audit.report import AuditReport, table, verdict_as_json
from runners.compose.outsourced import OutsourcedExperiment

ALGORITHMS = {
    "random_projection": "po_gp_ucb", "gaussian": "gaussian_gp_ucb", "histogram": "histogram_gp_ucb",
    "none": "gp_ucb", "cover": "cover_gp_ucb", "indices": "random_rows",
}  # fmt: skip
FEW, TRIALS = 400, 5_000  # releases of each table, without and with noise
SLOW = 100  # releases of each table with discrete noise; one takes a quarter of a second
SCORES = {
    "column space": "score: log residual outside the\ntable's column space minus that\noutside the neighbour's",
    "likelihood ratio": "score (log-likelihood ratio of the release)",
}


def completed(overrides: Sequence[str]) -> list[str]:
    """Add the override `algorithm=...` that belongs to the given `transform=...`.

    The overrides are returned unchanged if they name no known transform, or if they already name an algorithm.
    """
    given = dict(o.split("=", 1) for o in overrides if "=" in o)
    chosen = ALGORITHMS.get(given.get("transform", ""))
    return [*([] if chosen is None or "algorithm" in given else [f"algorithm={chosen}"]), *overrides]


def check_claims(experiment: OutsourcedExperiment) -> None:
    """Raise ValueError if the experiment releases nothing, or claims no privacy for its release."""
    name = experiment.settings.algorithm.name
    if experiment.transform.event(experiment.problem.table.public) is None:
        raise ValueError(f"algorithm={name} releases nothing of the table: there is nothing to audit")
    if isinstance(experiment.transform, Plain):
        raise ValueError(f"algorithm={name} claims no privacy: there is nothing to audit")


def trials_of(transform: Transform) -> int:
    """Return the number of trials of an attack if --trials is not given.

    An attack has two neighbouring tables. Each trial releases both tables once.
    """
    if isinstance(getattr(transform, "noise", None), DiscreteGaussian):
        return SLOW
    return FEW if isinstance(transform, RandomProjection) else TRIALS


def audit(
    experiment: OutsourcedExperiment, attacks: Sequence[Attack], trials: int, seed: int, on_step: Callable[[], None]
) -> AuditReport:
    """Check the release, run every attack, then reconstruct the rows from one release.

    If the release is a histogram, the rows are not reconstructed. on_step: called after each trial.
    """
    begin, transform, data = time.monotonic(), experiment.transform, experiment.problem.table
    system = not experiment.settings.privacy.seeded
    findings = checks.examine(transform, data, seed, system)
    told = [two_tables.told_apart(transform, attack, trials, seed, system, on_step) for attack in attacks]
    release, unreleased = transform.release(data, SystemEntropy() if system else seeded("reconstruction", seed))
    rebuilt: tuple[Reconstruction, ...] = ()
    if not isinstance(transform, Histogram):
        rows, values = transform.scale(data) * data.rows, in_table_order(release, unreleased)
        rebuilt = reconstructions(values, rows)
    errors = [
        {
            "attacker": r.attacker, "known_rows": r.known.tolist(), "largest_error": r.largest,
            "root_mean_square": r.rms, "in_sigma": r.per_sigma(release.sigma) if release.sigma else None,
        }
        for r in rebuilt
    ]  # fmt: skip
    claim, (n, d) = two_tables.claim_of(transform, data), data.rows.shape
    title = f"{experiment.settings.algorithm.name} on {experiment.problem.name}"
    epsilon = f"{epsilon_in_words(claim.epsilon, 3)}, {delta_in_symbols(claim.delta)}"
    return AuditReport(
        title=f"{title}: {n} rows, {d} features, released once",
        sound=all(f.holds for f in findings) and all(t.holds for t in told),
        checks=(f"checks of {checks.RELEASES} releases", findings),
        tables=[_told(told), *([_reconstructed(errors)] if rebuilt else [])],
        notes=_notes(experiment, claim, told, bool(rebuilt), release.sigma),
        answer={
            "algorithm": experiment.settings.algorithm.name, "problem": experiment.problem.name, "rows": n,
            "features": d, "claimed_epsilon": finite_or_none(claim.epsilon), "delta": claim.delta,
            "relation": claim.accountant.relation, "published_claim": experiment.published_claim,
            "told_apart": [_told_as_json(t) for t in told], "reconstruction": errors,
            "sigma": release.sigma, "seconds": round(time.monotonic() - begin, 2),
        },
        picture_title=f"{title}: {'published claim' if experiment.published_claim else 'claimed'} ε = {epsilon}",
        panels=[partial(_draw, told=t) for t in told],
    )  # fmt: skip


def _told(told: Sequence[AttackResult]) -> Any:
    title = f"the table or a neighbour: which was released? (scaled to norm {NORM:g})"
    rows = [
        (
            t.attack.name, t.attack.words, f"{t.accuracy:.1%}", epsilon_in_words(t.verdict.claim.epsilon, 3),
            f"{t.verdict.epsilon:.3f}", "holds" if t.holds else "[bold]VIOLATED[/bold]",
        )
        for t in told
    ]  # fmt: skip
    return table(title, ("attack", "neighbour", "told apart", "claimed", "bound", "claim"), rows)


def _reconstructed(errors: Sequence[dict[str, Any]]) -> Any:
    numbers = [(e["largest_error"], e["root_mean_square"], e["in_sigma"]) for e in errors]
    words = [["–" if x is None else f"{x:.3g}" for x in line] for line in numbers]
    rows = [(e["attacker"], str(len(e["known_rows"])), *line) for e, line in zip(errors, words, strict=True)]
    title = "all rows from one release: distances from the truth"
    return table(title, ("attacker", "rows known", "largest", "root mean square", "in sigma"), rows)


def _notes(
    experiment: OutsourcedExperiment, claim: Claim, told: Sequence[AttackResult], rebuilt: bool, sigma: float
) -> list[str]:
    v, epsilon = told[0].verdict, epsilon_in_words(claim.epsilon, 3)
    notes = [
        experiment.published_claim
        or f"claimed: epsilon {epsilon}, {delta_in_words(claim.delta)}, relation: {claim.accountant.relation}",
        f"bounds: {v.trials} releases of each table, Clopper-Pearson, confidence {CONFIDENCE:.0%} for a whole row; "
        f"without a single error the bound would be {most_shown(claim, v.trials):.2f}",
    ]
    if isinstance(experiment.transform, GaussianNoise):
        notes.append("attackers know the secret order of the released rows, which the release itself does not reveal")
    if any(t.disjoint for t in told):
        notes.append(
            "in every trial the release lay in the column space of its own table and far outside the other's: no "
            "bound is needed to see that delta is 1 for every epsilon"
        )
    if sigma:
        words = "in sigma: error of one coordinate, 1 for the release itself" if rebuilt else "no row is released"
        notes.append(f"sigma {sigma:.4g}; {words}")
    return notes


def _told_as_json(t: AttackResult) -> dict[str, Any]:
    most = most_shown(t.verdict.claim, t.verdict.trials)
    return {
        "attack": t.attack.name, "neighbour": t.attack.words, "accuracy": t.accuracy, **verdict_as_json(t.verdict),
        "most_shown": most if math.isfinite(most) else None, "disjoint": t.disjoint, "holds": t.holds,
    }  # fmt: skip


def _draw(axes: Any, told: AttackResult) -> None:
    names = ("the table was released", "its neighbour was")
    verdict = f"lower bound of ε {told.verdict.epsilon:.2f}: claim {'holds' if told.holds else 'VIOLATED'}"
    title = f"{told.attack.words}: {told.accuracy:.1%} told apart\n{verdict}"
    picture.scores(axes, told.verdict, names, SCORES[told.attack.name], title)
