"""The modeler in a Ray actor: the records of one process, and no row in the modeler's process."""

import os
import signal
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import ray
import torch

from dpfbo.outsourced.loop import LocalModeler
from dpfbo.outsourced.transforms import NORM, centred, scaled_to_norm
from dpfbo.privacy.ledger import Ledger
from runners.audit import files
from runners.compose.composition import build
from runners.executor.deployment import ExecutorError
from runners.executor.ray.modeler import ModelerActor
from runners.executor.ray.outsourced import RayModeler
from runners.executor.ray.supervision import Actor
from runners.recorded_run import run_configuration
from tests.helpers.compose import compose
from tests.helpers.process_memory import masked, scan
from tests.helpers.small_runs import QUIET, call, records

ROUNDS = 5
SMALL = ["problem=grid_gp", "problem.side_points=20", f"rounds={ROUNDS}", *QUIET]
HISTOGRAM = ["algorithm=histogram_gp_ucb", "privacy.epsilon=20"]  # a curator that remembers its measurements
RAY = ["executor=ray"]


def run(folder, *overrides, on_round=lambda done: None):
    """Run an outsourced experiment; returns (summary, folder)."""
    return run_configuration(compose(*SMALL, *overrides, f"results_dir={folder}"), on_round)


class Parked:
    """Processes of actors, used by one run after another, which may die.

    They import only the code of their actors.
    """

    def __init__(self, monkeypatch):
        self.free = defaultdict(list)
        monkeypatch.setattr(Actor, "create", lambda actor: self.create(actor))
        monkeypatch.setattr(Actor, "kill", lambda actor: self.park(actor))

    def create(self, actor):
        free = self.free[actor.cls]
        actor.handle = free.pop() if free else actor.cls.options(num_cpus=0).remote(*actor.arguments)
        actor.handle.__ray_call__.remote(lambda instance, *arguments: instance.__init__(*arguments), *actor.arguments)

    def park(self, actor):
        if actor.handle is not None and actor.alive():
            ray.get(actor.handle.__ray_call__.remote(lambda instance: vars(instance).clear()))  # closes the ledger
            self.free[actor.cls].append(actor.handle)
        actor.handle = None


@pytest.fixture(scope="module")
def parked():
    """A Ray with a small object store, which the tests search completely."""
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=80_000_000)
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Parked(monkeypatch)
    ray.shutdown()


@pytest.fixture
def placed(parked, monkeypatch):
    """The deployments of this test, in processes that no other test has used."""
    parked.free.clear()
    deployments = []

    def watched(self):
        deployments.append(self)
        place(self)

    place = RayModeler.place
    monkeypatch.setattr(RayModeler, "place", watched)
    return deployments


def inside(deployment, function, *arguments):
    """Call a function in the process of the modeler's actor; returns its result."""
    return ray.get(deployment.actors[0].handle.__ray_call__.remote(function, *arguments))


@pytest.mark.parametrize("algorithm", ["gaussian_gp_ucb", "histogram_gp_ucb"])
def test_a_real_run_in_actors_leaves_only_what_follows_from_its_release(parked, algorithm):
    found = files.search([*SMALL[:2], *QUIET, *RAY, f"algorithm={algorithm}"])
    assert found.findings == []
    assert {"server.parquet", "summary.json", "curator.npz"} <= {name.rsplit("/")[-1] for name in found.files}


# A search of the memory of two fresh processes.

SEED = 7483921560418273  # two words of digits, and two "digits" of a Python integer
MASK = 0x5DEECE66D1234567
CHOSEN = [123, 777, 1404]  # rows whose coordinates are no round numbers
LARGE = ["problem.side_points=100", f"seed={SEED}"]  # a release that goes through the object store


def words_of(experiment):
    """The 8-byte words, by kind, in a process that knows the private rows (or values, or the seed).

    A word of a row is one coordinate, so that no layout hides it; in single precision, two.
    """
    table, transform = experiment.problem.table, experiment.transform
    scaled = scaled_to_norm(table.rows)
    kinds = {
        "rows": table.rows, "natural": table.natural, "scaled": scaled, "centred": centred(scaled),
        "raised": transform.raised(centred(scaled)) if hasattr(transform, "raised") else centred(scaled),
        "rows in single precision": table.rows.float(), "natural in single precision": table.natural.float(),
        "publicly scaled": table.rows * (NORM / table.public.radius), "values": table.values,
    }  # fmt: skip
    words = {kind: rows[CHOSEN].numpy().ravel().view(np.uint64) for kind, rows in kinds.items()}
    words |= {f"{kind} pickled": some.byteswap() for kind, some in words.items()}  # Python's floats, one by one
    text = np.frombuffer(str(SEED).encode(), dtype=np.uint64)
    number = np.array([SEED, SEED % 2**30 + (SEED >> 30 << 32)], dtype=np.uint64)
    return {**words, "seed": np.concatenate([text, number])}


def looked_through(deployment, words):
    """(occurrences of each word by kind; the same in shared memory; the whole result of the scan)."""
    flat = np.concatenate(list(words.values()))
    seen = inside(deployment, scan, masked(flat, MASK), MASK)
    ends = np.cumsum([len(w) for w in words.values()])[:-1]
    counts, shared = (dict(zip(words, np.split(c, ends), strict=True)) for c in (seen.counts, seen.shared))
    return counts, shared, seen


def scanned(placed, folder, algorithm):
    """The scan of the modeler's process after the last round of a run."""
    words, found, first = words_of(build(compose(*SMALL, *LARGE, f"algorithm={algorithm}"))), [], []

    def look(done):
        first.append(done)
        if done.agents.round == ROUNDS:
            table, private = first[0].broadcast, first[0].diagnostics
            sizes = np.array([private.signal, private.noise]).view(np.uint64)[: 1 + (private.noise > 0)]
            more = {
                "released": table.values[CHOSEN].numpy().ravel().view(np.uint64),
                "size of the table": np.concatenate([sizes, sizes.byteswap()]),
            }
            found.append(looked_through(placed[0], {**words, **more}))

    run(folder, f"algorithm={algorithm}", *LARGE, *RAY, on_round=look)
    return found[0]


needs_proc = pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="a process's memory is not in /proc here")


@needs_proc
@pytest.mark.parametrize("algorithm", ["po_gp_ucb", "gaussian_gp_ucb"])
def test_the_modeler_never_receives_the_rows(placed, tmp_path, algorithm):
    """The modeler's process has neither rows nor values nor the seed in its memory."""
    counts, shared, seen = scanned(placed, tmp_path, algorithm)
    assert [kind for kind, n in counts.items() if n.any()] == ["released"]
    assert counts["released"].min() > 0 and shared["released"].min() > 0, "it does find what is there"
    assert seen.bytes > 1e8 and all(name.startswith("[v") for name in seen.unreadable)
    assert not [m for m in seen.modules if m.startswith(("dpfbo.problems", "runners.compose.composition", "hydra"))]
    assert "dpfbo.outsourced.modeler" in seen.modules


@needs_proc
def test_without_a_transform_it_does(placed, tmp_path):
    counts, shared, _ = scanned(placed, tmp_path, "gp_ucb")
    assert counts["centred"].min() > 0
    in_shared_memory = {kind: shared[kind] for kind in ("natural", "values", "seed")}
    assert counts["natural"].max() == counts["values"].max() == counts["seed"].max() == 0, in_shared_memory


# The same records.

KINDS = {
    "po_gp_ucb": [], "gaussian_gp_ucb": [], "histogram_gp_ucb": HISTOGRAM, "random_rows": [],
    "gp_ucb": ["algorithm.modeler.fit=ml", "n_init=3"],
}  # fmt: skip


@pytest.mark.parametrize("algorithm", KINDS)
def test_records_do_not_depend_on_the_executor(parked, tmp_path, algorithm):
    settings = [f"algorithm={algorithm}", *KINDS[algorithm]]
    _, local = run(tmp_path / "local", *settings)
    summary, folder = run(tmp_path / "ray", *settings, *RAY)
    assert summary["executor"]["shards"] == 1
    assert summary["executor"]["restarts"] == 0
    assert records(folder) == records(local)


def test_a_run_goes_on_with_another_executor(parked, tmp_path):
    class Stop(Exception):
        pass

    def stop(done):
        if done.agents.round == 3:
            raise Stop

    _, undisturbed = run(tmp_path / "local", *HISTOGRAM)
    with pytest.raises(Stop):
        run(tmp_path / "ray", *HISTOGRAM, on_round=stop)
    _, folder = run(tmp_path / "ray", *HISTOGRAM, *RAY)
    assert records(folder) == records(undisturbed)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("executor.device=cuda", "executor.device=cuda is for agents: curator and modeler work on the CPU"),
        ("executor.num_gpus=0.1", "executor.num_gpus=0.1 is for agents: curator and modeler work on the CPU"),
        ("executor.num_cpus=5", "executor.num_cpus=5 of the modeler is more than any node has (4 CPUs)"),
    ],
)
def test_what_a_modeler_cannot_have(parked, monkeypatch, capsys, tmp_path, override, says):
    results = tmp_path / "r"
    assert call(monkeypatch, *SMALL, "algorithm=po_gp_ucb", *RAY, override, f"results_dir={results}") == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and says in error and error.count("\n") == 1
    assert not list(results.rglob("*"))


# Deaths.


def dies_after(deployment, method):
    """Let the modeler's process kill itself after the next call of this method of its object."""

    def arm(actor):
        original = getattr(actor._modeler, method)

        def last(*arguments):
            original(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(actor._modeler, method, last)

    inside(deployment, arm)


def with_deaths(placed, folder, deaths, *overrides):
    """Run with a modeler that dies right after a method. deaths: methods by the last finished round."""

    def arm(done):
        for method in deaths.get(done.agents.round, []):
            dies_after(placed[-1], method)

    return run(folder, *overrides, *RAY, on_round=arm)


def test_a_modeler_that_dies_leaves_no_trace(placed, tmp_path):
    _, local = run(tmp_path / "local", *HISTOGRAM)
    summary, folder = with_deaths(placed, tmp_path / "ray", {1: ["propose"], 3: ["observe"]}, *HISTOGRAM)
    assert summary["executor"]["restarts"] == 2
    assert records(folder) == records(local)


def test_one_death_too_many_ends_the_run_and_the_same_command_goes_on(placed, tmp_path):
    _, undisturbed = run(tmp_path / "local", "algorithm=po_gp_ucb")
    says = r"the actor of the modeler died 1 times, more than executor.max_restarts=0: .* goes on after round 2"
    dies = {2: ["propose"]}
    with pytest.raises(ExecutorError, match=says):
        with_deaths(placed, tmp_path / "ray", dies, "algorithm=po_gp_ucb", "executor.max_restarts=0")
    _, folder = run(tmp_path / "ray", "algorithm=po_gp_ucb")
    assert records(folder) == records(undisturbed)


# In this process.


def test_a_call_that_is_repeated_has_the_same_answer():
    """An answer may be lost while its actor lives."""
    experiment = build(compose(*SMALL, "algorithm=po_gp_ucb"))
    curator = experiment.curator(Ledger())
    released, _, _ = curator.release()
    actor = ModelerActor.__ray_metadata__.modified_class()
    actor._modeler, other = LocalModeler(experiment.brief()), LocalModeler(experiment.brief())
    assert actor.start(released.values) == actor.start(released.values) == other.start(released.values)
    for t in range(ROUNDS):
        indices = [17] if t == 0 else [other.propose(t, 0.5)]
        if t:
            assert actor.propose(t, 0.5) == actor.propose(t, 0.5) == indices[0]
        y = curator.measure(t, indices).y
        actor.observe(t, indices, y)
        actor.observe(t, indices, y)
        other.observe(t, indices, y)
    ours, theirs = actor._modeler._modeler, other._modeler
    assert ours._steps == theirs._steps == ROUNDS - 1
    assert torch.equal(ours._posterior.mean, theirs._posterior.mean)
