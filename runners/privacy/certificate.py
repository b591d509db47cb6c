"""The certificate of a real release: a page for a data protection officer about the release and its epsilon.

Charges and epsilon come from the ledger, and are compared with the run's other files.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpfbo import checks
from dpfbo.audit.bounds import FEWEST
from dpfbo.formats.bounded import MOST_RECORD, plain, read_plain
from dpfbo.formats.files import replace_text
from dpfbo.formats.record_tables import SERVER_SCHEMA, released
from dpfbo.formats.run_folder import ResultsError
from dpfbo.formats.words import METHODS, RELATIONS, delta_in_words, epsilon_in_words, neighbours
from dpfbo.privacy.ledger import Charge
from runners.audit.server import audit
from runners.compose.composition import build
from runners.compose.outsourced import OutsourcedExperiment
from runners.privacy import ledgers
from runners.replay import recorded

PUBLIC = ("config.yaml", "ledger.jsonl", "server.parquet")  # a digest of private data would let others test a guess
NOT_COVERED = (
    "settings that were chosen by looking at private data, and other runs on the same data, whose ledgers add up "
    "(python -m runners.privacy ledger)",
    "the server, which sees every message before it adds noise, and whoever can read its memory or this folder",
    "what an agent or its owner publishes, including the configuration that it found",
    "mistakes in the program: an audit looks for them, but cannot prove their absence",
)
_LARGEST_DELTA = 0.01  # with this probability, the privacy loss may exceed epsilon
_PART_OF_ONE_AGENT = 0.7  # largest delta, as a share of 1 / N; the default N^-1.1 is below it from N = 36 on
_SAME = 1e-9  # tolerated relative difference of two epsilons of the same charges, from rounding


def certificate(folder: Path) -> dict[str, Any]:
    """Return the contents of the certificate of a finished run with `privacy.rng=os`.

    Raises ResultsError if the folder holds no such run, and LedgerError for a ledger that is damaged.
    """
    summary, server = _read(folder)
    charges = ledgers.opened(folder / "ledger.jsonl").charges
    spent = ledgers.added_up([folder / "ledger.jsonl"], summary["delta"])
    run = ("experiment", "setting", "label", "problem", "algorithm", "n_agents", "rounds", "seed")
    return {
        "run": {key: summary.get(key) for key in run},
        "charges": list(_grouped(charges)),
        "n_charges": len(charges),
        **{key: spent[key] for key in ("epsilon", "approximations", "delta", "relation", "covers")},
        "checks": [
            {"check": check, "holds": holds, "words": words}
            for check, holds, words in _checks(summary, server, charges, spent["epsilon"])
        ],
        "audit": None,
        "not_covered": list(NOT_COVERED),
        "digests": {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in PUBLIC},
        "commit": summary.get("commit"),
        "environment": summary.get("environment"),
    }


def audited(folder: Path, trials: int, allow: Sequence[str] = ()) -> dict[str, Any]:
    """Audit a server with the run's settings, and return the contents of audit.json.

    trials: the number of runs in each of two worlds, which differ in one agent's messages; 0 for no such runs. allow:
    packages and modules whose classes and functions the run's config.yaml may use. Raises ValueError for an outsourced
    release, or if `trials` is too small and not 0.
    """
    checks.integer("--audit", trials, minimum=0)
    if 0 < trials < FEWEST:
        raise ValueError(f"--audit must be 0 or at least {FEWEST}, got {trials}")
    experiment = build(recorded(folder, allow, "--allow {}")[0])
    if isinstance(experiment, OutsourcedExperiment):
        raise ValueError("--audit is for servers of messages: python -m runners.audit attacks outsourced tables")
    return audit(experiment, 1, trials, 0, lambda: None).as_json()


def holds(facts: dict[str, Any]) -> bool:
    """Return True if all checks hold, and no audit found a fault."""
    return all(check["holds"] for check in facts["checks"]) and (facts["audit"] is None or facts["audit"]["sound"])


def write(facts: dict[str, Any], out: Path) -> list[Path]:
    """Write the page as `out`.md and its contents as `out`.json, each atomically; return their paths."""
    page, contents = out.with_name(f"{out.name}.md"), out.with_name(f"{out.name}.json")
    replace_text(page, markdown(facts))
    replace_text(contents, json.dumps(facts, indent=1, allow_nan=False) + "\n")
    return [page, contents]


def _read(folder: Path) -> tuple[dict[str, Any], pa.Table]:
    if not folder.is_dir():
        raise ResultsError(f"a certificate needs the folder of a finished run, got {str(folder)!r}")
    for name in (*PUBLIC, "summary.json"):
        if not (folder / name).is_file():
            raise ResultsError(f"{folder} holds no finished run: {name} is missing")
    file = folder / "summary.json"
    try:
        summary: dict[str, Any] = json.loads(read_plain(file, MOST_RECORD))
        rng, private, delta = summary["rng"], summary["private"], summary["delta"]
        file = folder / "server.parquet"
        server = pq.read_table(plain(file))
        server.select(["round", "sigma"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError, pa.ArrowException) as error:
        raise ResultsError(f"{file} cannot be read: {error}") from error
    if not private or delta is None:
        raise ResultsError(f"{folder} claims no privacy: there is nothing to certify")
    if rng != "os":
        raise ResultsError(f"{folder} is a simulation (privacy.rng={rng}): whoever has the seed can remove its noise")
    return summary, server


def _grouped(charges: Sequence[Charge]) -> Iterator[dict[str, Any]]:
    """Yield one entry for each group of consecutive charges with the same event and noise."""
    names = ("q", "z", "sigma", "sensitivity", "subset")
    for values, group in groupby(charges, key=lambda charge: [getattr(charge, name) for name in names]):
        rounds = [charge.round for charge in group]
        yield {"broadcasts": len(rounds), "rounds": [rounds[0], rounds[-1]], **dict(zip(names, values, strict=True))}


def _checks(
    summary: dict[str, Any], server: pa.Table, charges: Sequence[Charge], epsilon: dict[str, float | None]
) -> Iterator[tuple[str, bool, str]]:
    """Compare the run's files; yield the subject, result and details of each check."""
    known = summary.get("n_charges")
    enough = isinstance(known, int) and known <= len(charges)
    yield "every broadcast is charged", enough, f"{len(charges)} charges in the ledger, {known} in the summary"

    charged = {(charge.round, charge.sigma) for charge in charges}
    sent = zip(server["round"].to_pylist(), server["sigma"].to_pylist(), strict=True)
    other = [t for t, sigma in sent if (t, sigma) not in charged]
    words = f"not in round {other[0]}" if other else f"{len(server)} broadcasts"
    yield "the noise of every broadcast is the ledger's", not other, words

    private = [name for name in server.column_names if name not in released(SERVER_SCHEMA).names]
    words = f"delete server.parquet, which reveals {', '.join(private)}" if private else "server.parquet"
    yield "the server's record holds released numbers alone", not private, words

    said = {name: math.inf if value is None else value for name, value in (summary.get("epsilon") or {}).items()}
    spent = {name: math.inf if value is None else value for name, value in epsilon.items()}
    less = [name for name, value in said.items() if value < spent.get(name, value) * (1 - _SAME)]
    words = f"by {', '.join(less)} it is below the ledger's" if less else "by every accountant"
    yield "the summary's epsilon is not below the ledger's", not less, words

    delta, n_agents = summary["delta"], summary.get("n_agents") or 1
    most = _PART_OF_ONE_AGENT / n_agents  # a release that names one agent at random has delta 1 / N
    small = delta <= min(_LARGEST_DELTA, most)
    words = (
        f"delta is {delta:.3g}; it should be at most {_LARGEST_DELTA:g}, and at most {_PART_OF_ONE_AGENT:g} / "
        f"{n_agents} agents = {most:.3g}"
    )
    yield "delta is small", small, words if small else f"no: {words}"


def markdown(facts: dict[str, Any]) -> str:
    """Return the certificate in Markdown."""
    run, environment = facts["run"], facts["environment"] or {}
    relation = facts["relation"]
    compared = f"{relation}: {RELATIONS[relation]}" if relation in RELATIONS else neighbours(relation)
    columns = ("broadcasts", "rounds", "q", "z", "sigma", "sensitivity")
    charges = [{**charge, "rounds": "{} to {}".format(*charge["rounds"])} for charge in facts["charges"]]
    accountants = [(name, epsilon_in_words(e), METHODS.get(name, "")) for name, e in facts["epsilon"].items()]
    checks = [("holds" if c["holds"] else "FAILS", c["check"], c["words"]) for c in facts["checks"]]
    not_covered = "\n".join(f"- {words}" for words in facts["not_covered"])
    versions = ", ".join(f"{name} {version}" for name, version in environment.get("packages", {}).items())
    return f"""# Privacy certificate

Run: {run["label"] or run["setting"]}, experiment {run["experiment"]}, setting {run["setting"]}, seed {run["seed"]}; \
{run["n_agents"]} agents, {run["rounds"]} rounds. The noise came from the operating system and was not kept.

## What was released

{_table(columns, [[charge[name] for name in columns] for charge in charges])}

{facts["n_charges"]} charges in the ledger. q: probability that an agent takes part in a round; z: noise over \
sensitivity; sigma: standard deviation of the noise in each number.

## What it costs

{_table(("accountant", "epsilon", ""), accountants)}

At {delta_in_words(facts["delta"])}; neighbours: {compared}. Every accountant that does not approximate gives a \
guarantee by itself, so the smallest counts.

Epsilon covers {facts["covers"]}.

## Checked

{_table(("", "", ""), checks)}

{_audit_in_words(facts["audit"])}

## Not covered

{not_covered}

## Made with

commit {facts["commit"] or "unknown"}; Python {environment.get("python", "unknown")}; {versions}

{_table(("file", "sha256"), list(facts["digests"].items()))}

Name, date, signature: ______________________________________________
"""


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    def shown(cell: object) -> str:
        return "none" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell)

    lines = [head, ["---"] * len(head), *([shown(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _audit_in_words(audit: dict[str, Any] | None) -> str:
    if audit is None:
        return "Not audited: `python -m runners.privacy certificate FOLDER --audit 10000` attacks the setting's server."
    words = f"Audited: {len(audit['checks'])} checks of the setting's server"
    if two_worlds := audit["two_worlds"]:
        words += f", and {two_worlds['trials']} trials, which bound epsilon from below by {two_worlds['bound']:.3g}"
        words += f" after {audit['rounds']} of {audit['broadcasts']} broadcasts"
    return f"{words}: {'nothing found' if audit['sound'] else 'FAULTS FOUND'}."
