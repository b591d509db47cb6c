"""The audit of an outsourced table's release: checks, attacks, and their report."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Shown

from dpfbo.audit.bounds import Claim
from dpfbo.audit.release import checks, reconstruction, two_tables
from dpfbo.audit.release.reconstruction import Reconstruction
from dpfbo.audit.release.scores import in_table_order
from dpfbo.audit.release.two_tables import Attack, AttackResult
from dpfbo.audit.server.repeated_rounds import CheckResult
from dpfbo.audit.server.target import seeded
from dpfbo.formats.files import replace_file
from dpfbo.formats.words import delta_in_symbols, delta_in_words, epsilon_in_words
from dpfbo.outsourced.transforms import NORM
from dpfbo.outsourced.transforms.gaussian import GaussianNoise
from dpfbo.outsourced.transforms.histogram import Histogram
from dpfbo.outsourced.transforms.plain import Plain
from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.entropy import SystemEntropy
from dpfbo.privacy.noise import DiscreteGaussian
from runners.audit import table_release_picture
from runners.compose.outsourced import OutsourcedExperiment

ALGORITHMS = {
    "random_projection": "po_gp_ucb", "gaussian": "gaussian_gp_ucb", "histogram": "histogram_gp_ucb",
    "none": "gp_ucb", "cover": "cover_gp_ucb", "indices": "random_rows",
}  # fmt: skip
FEW, TRIALS = 400, 5_000  # releases of each table, without and with noise
SLOW = 100  # releases of each table with discrete noise; one takes a quarter of a second
MARGIN = 1.2  # bound of a test without errors over the claimed epsilon


@dataclass(frozen=True)
class OutsourcedAudit:
    """The result of one audit.

    findings: empty for the published transform; told: one for each attack and repetition; sigma: standard deviation of
    the noise, 0 without noise.
    """

    experiment: OutsourcedExperiment
    claim: Claim
    findings: tuple[CheckResult, ...]
    told: tuple[AttackResult, ...]
    reconstructions: tuple[Reconstruction, ...]
    sigma: float
    seconds: float

    @property
    def title(self) -> str:
        return f"{self.experiment.settings.algorithm.name} on {self.experiment.problem.name}"

    @property
    def sound(self) -> bool:
        return all(f.holds for f in self.findings) and all(t.holds for t in self.told)


def completed(overrides: Sequence[str]) -> list[str]:
    """The overrides, with the algorithm of the given transform in front if they name none."""
    given = dict(o.split("=", 1) for o in overrides if "=" in o)
    chosen = ALGORITHMS.get(given.get("transform", ""))
    return [*([] if chosen is None or "algorithm" in given else [f"algorithm={chosen}"]), *overrides]


def check_claims(experiment: OutsourcedExperiment) -> None:
    """Raise ValueError if the experiment releases nothing, or claims no privacy of the release."""
    name = experiment.settings.algorithm.name
    if experiment.transform.event(experiment.problem.table.public) is None:
        raise ValueError(f"algorithm={name} releases nothing of the table: there is nothing to audit")
    if isinstance(experiment.transform, Plain):
        raise ValueError(f"algorithm={name} claims no privacy: there is nothing to audit")


def trials_of(experiment: OutsourcedExperiment, confidence: float) -> int:
    """The number of releases of each table that the attacks need, the default of --trials."""
    claim = two_tables.claim_of(experiment.transform, experiment.problem.table)
    if isinstance(getattr(experiment.transform, "noise", None), DiscreteGaussian):
        return SLOW
    if claim.family is not None:
        return TRIALS
    trials = FEW
    while two_tables.most_shown(claim, trials, confidence) < MARGIN * claim.epsilon and trials < TRIALS:
        trials *= 2
    return min(trials, TRIALS)


def audit(
    experiment: OutsourcedExperiment, attacks: Sequence[Attack], trials: int, repetitions: int, seed: int,
    confidence: float, on_step: Callable[[], None],
) -> OutsourcedAudit:  # fmt: skip
    """Check the release, repeat every attack `repetitions` times, then reconstruct the rows from one release.

    on_step: called after each trial.
    """
    begin, transform, table = time.monotonic(), experiment.transform, experiment.problem.table
    system = not experiment.settings.privacy.seeded
    findings = checks.examine(transform, table, seed, system)
    told = [
        two_tables.told_apart(transform, attack, trials, seed, repetition, confidence, system, on_step)
        for attack in attacks
        for repetition in range(repetitions)
    ]
    release, unreleased = transform.release(table, SystemEntropy() if system else seeded("reconstruction", seed))
    found: list[Reconstruction] = []
    if not isinstance(transform, Histogram):
        rows, values = transform.scale(table) * table.rows, in_table_order(release, unreleased)
        found = [
            reconstruction.from_known_rows(values, rows), reconstruction.best_affine(values, rows),
            reconstruction.blind(rows),
        ]  # fmt: skip
    claim, seconds = two_tables.claim_of(transform, table), time.monotonic() - begin
    return OutsourcedAudit(experiment, claim, findings, tuple(told), tuple(found), release.sigma, seconds)


def show(audit: OutsourcedAudit, files: Sequence[Path]) -> None:
    """Print checks, attacks, reconstructions, the paths of the files and the verdict."""
    console = Console(highlight=False)
    n, d = audit.experiment.problem.table.rows.shape
    console.print(f"{audit.title}: {n} rows, {d} features, released once")
    if audit.findings:
        console.print(_checks(audit.findings))
    console.print(_told(audit))
    if audit.reconstructions:
        console.print(_reconstructed(audit))
    for line in _notes(audit):
        console.print(line, soft_wrap=True)
    for file in files:
        console.print(f"written: {file}", soft_wrap=True)
    console.print("nothing found" if audit.sound else "the claim does NOT hold", style=None if audit.sound else "bold")


def _checks(findings: Sequence[CheckResult]) -> Shown:
    shown = Shown(title=f"checks of {checks.RELEASES} releases", title_justify="left")
    for column in ("check", "", "worst that was seen"):
        shown.add_column(column)
    for f in findings:
        shown.add_row(f.check, "holds" if f.holds else "[bold]FAILS[/bold]", f.words)
    return shown


def _told(audit: OutsourcedAudit) -> Shown:
    shown = Shown(
        title=f"the table or a neighbour: which was released? (scaled to norm {NORM:g})", title_justify="left"
    )
    for column in ("attack", "neighbour", "told apart", "claimed", "bound", "by fit", "claim"):
        shown.add_column(column, justify="left" if column in ("attack", "neighbour", "claim") else "right")
    for t in audit.told:
        v = t.verdict
        fit = "–" if v.fit_epsilon is None else f"{v.fit_epsilon:.3f}"
        words = "holds" if t.holds else "[bold]VIOLATED[/bold]"
        numbers = (f"{t.accuracy:.1%}", epsilon_in_words(v.claim.epsilon, 3), f"{v.epsilon:.3f}", fit)
        shown.add_row(t.attack.name, t.attack.words, *numbers, words)
    return shown


def _reconstructed(audit: OutsourcedAudit) -> Shown:
    title = "all rows from one release: distances from the truth"
    shown = Shown(title=title, title_justify="left")
    for column in ("attacker", "rows known", "largest", "root mean square", "in sigma"):
        shown.add_column(column, justify="left" if column == "attacker" else "right")
    for r in audit.reconstructions:
        ratio = f"{r.per_sigma(audit.sigma):.3f}" if audit.sigma else "–"
        shown.add_row(r.attacker, str(len(r.known)), f"{r.largest:.3g}", f"{r.rms:.3g}", ratio)
    return shown


def _notes(audit: OutsourcedAudit) -> list[str]:
    claim, v = audit.claim, audit.told[0].verdict
    most = two_tables.most_shown(claim, v.trials, v.confidence)
    notes = [
        audit.experiment.published_claim
        or f"claimed: epsilon {epsilon_in_words(claim.epsilon, 3)}, {delta_in_words(claim.delta)}, "
        f"relation: {claim.relation}",
        f"bounds: {v.trials} releases of each table, Clopper-Pearson, confidence {v.confidence:.0%} for all of a row; "
        f"without a single error they would show epsilon {most:.2f}",
    ]
    if isinstance(audit.experiment.transform, GaussianNoise):
        notes.append("attackers know the secret order of the released rows, which the release itself does not tell")
    if any(t.disjoint for t in audit.told):
        notes.append(
            "in every trial the release lay in the column space of its own table and far outside the other's: no "
            "bound is needed to see that delta is 1 for every epsilon"
        )
    if audit.sigma:
        notes.append(
            f"sigma {audit.sigma:.4g}; in sigma: of one coordinate, 1 for the release itself"
            if audit.reconstructions
            else f"sigma {audit.sigma:.4g} of every count; no row is released, so that none is reconstructed"
        )
    return notes


def as_json(audit: OutsourcedAudit, overrides: Sequence[str]) -> dict[str, Any]:
    """The contents of audit.json."""
    experiment, claim = audit.experiment, audit.claim
    n, d = experiment.problem.table.rows.shape
    return {
        "algorithm": experiment.settings.algorithm.name, "problem": experiment.problem.name,
        "overrides": list(overrides), "rows": n, "features": d,
        "claimed_epsilon": finite_or_none(claim.epsilon), "delta": claim.delta, "relation": claim.relation,
        "published_claim": experiment.published_claim, "sound": audit.sound,
        "checks": [{**asdict(f), "measured": finite_or_none(f.measured)} for f in audit.findings],
        "told_apart": [_told_as_json(t) for t in audit.told],
        "reconstruction": [
            {
                "attacker": r.attacker, "known_rows": r.known.tolist(), "largest_error": r.largest,
                "root_mean_square": r.rms, "in_sigma": r.per_sigma(audit.sigma) if audit.sigma else None,
            }
            for r in audit.reconstructions
        ],
        "sigma": audit.sigma, "seconds": round(audit.seconds, 2),
    }  # fmt: skip


def _told_as_json(t: AttackResult) -> dict[str, Any]:
    v = t.verdict
    most = two_tables.most_shown(v.claim, v.trials, v.confidence)
    return {
        "attack": t.attack.name, "neighbour": t.attack.words, "accuracy": t.accuracy, "trials": v.trials,
        "bound": v.epsilon, "bound_by_fit": v.fit_epsilon, "most_shown": most if math.isfinite(most) else None,
        "confidence": v.confidence, "disjoint": t.disjoint, "holds": t.holds,
    }  # fmt: skip


def write(audit: OutsourcedAudit, answer: dict[str, Any], folder: Path) -> list[Path]:
    """Write audit.json and audit.png; returns their paths."""
    text = json.dumps(answer, indent=1) + "\n"
    path = folder / "audit.json"
    replace_file(path, lambda file: file.write(text.encode()))
    kind = "published claim" if audit.experiment.published_claim else "claimed"
    title = (
        f"{audit.title}: {kind} ε = {epsilon_in_words(audit.claim.epsilon, 3)}, {delta_in_symbols(audit.claim.delta)}"
    )
    told = list({id(t.attack): t for t in reversed(audit.told)}.values())[::-1]  # the first repetition of each
    rebuilt = audit.reconstructions[0] if audit.reconstructions else None
    return [path, table_release_picture.draw(told, rebuilt, title, folder / "audit.png")]
