"""While a run is under way nobody else charges its ledger, and nobody but its owner reads what is private."""

import fcntl
import json
import stat

import pyarrow.parquet as pq
import pytest

from runners.compose.composition import Composition
from runners.recorded_run import record_run
from tests.helpers.compose import compose
from tests.helpers.small_runs import QUIET, SMALL

PUBLIC = {"config.yaml", "server.parquet", "lineage.json", ".lock"}
KINDS = {
    "federated": [*SMALL, "rounds=3"],
    "private prior": [*SMALL, "rounds=3", "algorithm=dp_prior", "privacy.epsilon=1"],
    "outsourced": ["algorithm=gaussian_gp_ucb", "problem=grid_gp", "problem.side_points=10", "rounds=3"],
}


def run(folder, *overrides, on_round=lambda done: None):
    return record_run(Composition.of(compose(*overrides, *QUIET, f"results_dir={folder}")), on_round, single=True)


def readable_by_others(folder):
    """The files that others than their owner can read."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.name for path in files if stat.S_IMODE(path.stat().st_mode) & 0o077}


def locked(path):
    """True if somebody holds the lock of a file."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_the_ledger_is_locked_while_its_run_charges_it(tmp_path, kind):
    seen = []

    def look(done):
        (ledger,) = tmp_path.rglob("ledger.jsonl")
        seen.append((locked(ledger), locked(ledger.parent / ".lock")))

    _, folder = run(tmp_path, *KINDS[kind], on_round=look)
    assert len(seen) >= 3 and set(seen) == {(True, True)}
    assert not locked(folder / "ledger.jsonl")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rng", ["os", "seeded"])
def test_private_files_are_their_owners_alone(tmp_path, kind, rng):
    """Real data and what a restart needs are private; records of a simulation are not, once it is finished."""
    during, names = set(), set()

    def look(done):
        during.update(readable_by_others(tmp_path))
        names.update(path.name for path in tmp_path.rglob("*.npz"))

    _, folder = run(tmp_path, *KINDS[kind], f"privacy.rng={rng}", on_round=look)
    assert names, "the run keeps its rounds for a restart"
    simulated = {"progress.json", "rounds.parquet", "summary.json"} if rng == "seeded" else set()
    assert during <= PUBLIC | simulated
    after = readable_by_others(folder)
    assert after <= PUBLIC | simulated and "server.parquet" in after
    columns = set(pq.read_schema(folder / "server.parquet").names)
    summary = json.loads((folder / "summary.json").read_bytes())
    private = {"snr", "clip_fraction", "n_chosen", "n_rejected", "n_dropped"}
    assert columns & private == (private if rng == "seeded" else set())
    assert bool(summary.keys() & {*private, "release"}) == (rng == "seeded")
