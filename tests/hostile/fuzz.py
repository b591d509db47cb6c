"""Random damage to files, messages, ledgers and settings. Each function takes the number of cases and runs them all.

The cases are the same in every run: Hypothesis draws them without a seed of its own (derandomize).
"""

import gzip
import json
import math
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from scipy.io import savemat

from dpfbo import Agent, Coordinator, StateError, WireError
from dpfbo.checkpoint import Checkpoint, CheckpointError
from dpfbo.privacy.ledger import Ledger, LedgerError
from dpfbo.problems.objectives.svm import load_fields
from dpfbo.problems.readers.csv_table import read_columns
from dpfbo.problems.readers.data_files import MissingData
from dpfbo.problems.readers.har import read_windows
from dpfbo.problems.readers.writers import load_mnist_by_writer
from dpfbo.problems.school import load_schools
from dpfbo.protocol import wire
from runners.compose.typed import checked_settings
from runners.recorded_run import run_configuration
from runners.user_errors import user_errors
from tests.helpers.compose import compose
from tests.helpers.data_files import compact_file, some_windows, upstream_archive, write_compact
from tests.hostile.studies import N_INIT, N, sent, study_of

EXTREME = (b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f")


SECONDS = 60  # the most that a case may take
DONE: Counter[str] = Counter()  # cases that were run, by kind, failed ones included


class Hang(Exception):
    """A case that did not end within `SECONDS`."""


def cases(count: int):
    """Decorates a test with its number of cases; each is counted, and stopped when it hangs."""
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    chosen = settings(
        max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=quiet,
        report_multiple_bugs=False, phases=(Phase.generate, Phase.shrink),  # one that traces could not be interrupted
    )  # fmt: skip

    def decorated(test):
        check = test.hypothesis.inner_test
        kind = check.__qualname__.partition(".")[0].replace("_", " ")

        @wraps(check)
        def one_case(*arguments, **named):
            DONE[kind] += 1
            in_time(check, *arguments, **named)

        test.hypothesis.inner_test = one_case
        return chosen(test)

    return decorated


def in_time(check, *arguments, **named):
    """Call a check. Raises Hang after `SECONDS`; outside of the main thread, which has the signals, it may hang."""
    if threading.current_thread() is not threading.main_thread():
        return check(*arguments, **named)

    def late(*_):
        raise Hang(f"no end within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        return check(*arguments, **named)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@st.composite
def damaged(draw, whole: bytes):
    """The bytes with some replaced, cut off, doubled or put in."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.integers(0, 4)):
            case 0:
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                data[at : at + 4] = draw(st.sampled_from(EXTREME))
            case 2:
                del data[at:]
            case 3:
                data[at:at] = draw(st.binary(max_size=20))
            case 4:
                data[at:at] = data[at : at + 50]
    return bytes(data)


def one_sentence(error: BaseException) -> None:
    text = str(error)
    assert text and "\n" not in text.strip() and "Traceback" not in text, repr(text[:500])


@cache
def whole_files() -> dict[str, tuple[bytes, Callable[[Path], object]]]:
    """By name, a small file that can be read, and its reader."""
    found, windows = {}, some_windows(2, 2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_compact(folder / "digits.npz")
        fields, labels = (np.empty((1, 2), dtype=object) for _ in range(2))
        for n in range(2):
            fields[0, n], labels[0, n] = np.ones((8, 2)), np.arange(8)[:, None] % 2
        schools, scores = (np.empty((1, 2), dtype=object) for _ in range(2))
        for n in range(2):
            schools[0, n], scores[0, n] = np.ones((6, 28)), np.arange(6.0)[:, None] ** 2
        savemat(folder / "landmine.mat", {"feature": fields, "label": labels}, do_compression=True)
        savemat(folder / "school.mat", {"X": schools, "Y": scores})
        (folder / "table.csv").write_text("a,b\n1,2\n3,4\n")
        readers: dict[str, Callable[[Path], object]] = {
            "digits.npz": lambda path: load_mnist_by_writer(path, 3),
            "landmine.mat": lambda path: load_fields.__wrapped__(path, 0),
            "school.mat": lambda path: load_schools.__wrapped__(path, 0),
            "table.csv": lambda path: read_columns(path, ("a", "b")),
        }
        for file, reader in readers.items():
            found[file] = (folder / file).read_bytes(), reader
    found["har.zip"] = upstream_archive(windows), read_windows
    found["har.npz"] = compact_file(windows), read_windows
    found["table.csv.gz"] = gzip.compress(b"a,b\n1,2\n3,4\n"), readers["table.csv"]
    return found


def files(count: int) -> None:
    """Every damaged data file is read, or refused in one sentence that names it."""

    @cases(count)
    @given(data=st.data(), name=st.sampled_from(sorted(whole_files())))
    def check(data, name):
        whole, reader = whole_files()[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(data.draw(damaged(whole)))
            try:
                reader(path)
            except (ValueError, MissingData) as error:
                one_sentence(error)

    check()


def messages(count: int) -> None:
    """A damaged message or broadcast is refused in one sentence and changes nothing, or it is a message."""
    study = study_of()
    server, agent = Coordinator(study), Agent(study, 0)
    for _ in range(N_INIT):
        agent.tell(agent.ask(), 0.5)
    message = agent.message()
    broadcast = wire.broadcast(study.digest, 0, wire.RegionVectors(torch.ones(1, 20, dtype=torch.float64)))

    @cases(count)
    @given(data=st.data(), who=st.integers(-1, N))
    def check(data, who):
        before = server.received, agent.round
        try:
            server.receive(who, data.draw(damaged(message)))
        except (WireError, StateError) as error:
            one_sentence(error)
            assert server.received == before[0]
        try:
            agent.receive(data.draw(damaged(broadcast)))
        except (WireError, StateError) as error:
            one_sentence(error)
            assert agent.round == before[1]

    check()
    for n in range(N):  # whatever was taken, the round ends, and agents go on
        if n not in server.received:
            server.receive(n, sent(study, agent=n))
    agent.receive(server.release())
    assert agent.ask()


def ledgers(count: int) -> None:
    """A damaged ledger is read as one with its lines, or refused in one sentence; it never loses a whole line."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "whole.jsonl"
        study = study_of()
        server = Coordinator(study, Path(name) / "server")
        for t in range(3):
            server.release(round=t, missing_ok=True)
        server.close()
        whole = (Path(name) / "server" / "ledger.jsonl").read_bytes()
        assert whole.count(b"\n") == 4  # the first line says which study it is of

        @cases(count)
        @given(content=damaged(whole))
        def check(content):
            path.write_bytes(content)
            try:
                ledger = Ledger(path)
                kept = len(ledger.charges)
                ledger.events()
            except (LedgerError, ValueError) as error:
                one_sentence(error)
            else:
                assert kept >= content.count(b"\n") - (ledger.covers is not None)
            assert path.read_bytes() == content

        check()


@cache
def whole_checkpoint() -> tuple[bytes, ...]:
    """The files of the three rounds of a checkpoint."""
    rounds = []

    class Enough(Exception):
        pass

    def stop(done):
        if done.agents.round == 2:
            raise Enough

    with tempfile.TemporaryDirectory() as name:
        try:
            run_configuration(compose(*BASE, "rounds=3", "algorithm=dp_fts_de", f"results_dir={name}"), stop)
        except Enough:
            rounds = sorted(Path(name).rglob("round-*.npz"))
        return tuple(path.read_bytes() for path in rounds)


def checkpoints(count: int) -> None:
    """A damaged checkpoint gives the rounds that were kept, to the bit, or fewer, or is refused in one sentence."""
    whole = whole_checkpoint()
    assert len(whole) == 3

    @cases(count)
    @given(data=st.data(), t=st.integers(0, 2))
    def check(data, t):
        with tempfile.TemporaryDirectory() as name:
            for k, content in enumerate(whole):
                (Path(name) / f"round-{k:05d}.npz").write_bytes(content)
            expected = list(Checkpoint(Path(name)).rounds())
            (Path(name) / f"round-{t:05d}.npz").write_bytes(data.draw(damaged(whole[t])))
            try:
                kept = list(Checkpoint(Path(name)).rounds())
            except CheckpointError as error:
                one_sentence(error)
            else:
                assert len(kept) in (t, 3)
                for done, known in zip(kept, expected, strict=False):
                    assert done.agents.round == known.agents.round
                    assert torch.equal(done.agents.x, known.agents.x) and torch.equal(done.agents.y, known.agents.y)

    check()


ANY = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.just(2**63), st.floats(width=32), st.text(max_size=4),
    st.lists(st.integers(0, 3), max_size=2), st.dictionaries(st.sampled_from(["_target_", "x"]), st.text(max_size=3)),
)  # fmt: skip
BASE = ("problem=branin", "problem.n_agents=4", "rounds=2", "n_init=2", "tracker.wandb.mode=disabled", "algorithm.M=10")
KEYS = (
    "seed", "rounds", "n_init", "resume", "again", "allow", "experiment_name", "dropout", "dropout.probability",
    "dropout.deadline", "problem", "problem._target_", "problem.n_agents", "algorithm", "algorithm.P", "algorithm.M",
    "algorithm.server", "algorithm.follow", "algorithm.message", "algorithm.own_gp", "algorithm.own_gp.kernel",
    "algorithm.own_gp.noise", "algorithm.own_draw", "algorithm.prior", "algorithm.private", "privacy", "privacy.q",
    "privacy.z", "privacy.S", "privacy.epsilon", "privacy.delta", "privacy.rng", "privacy.noise", "privacy.schedule",
    "privacy.accountant", "privacy.accountants", "privacy.budget", "privacy.sampling", "weights", "weights.decay",
    "acquisition", "executor", "executor.device", "executor.threads", "tracker", "tracker.wandb", "transform",
)  # fmt: skip
FITTING = st.fixed_dictionaries({
    "algorithm.P": st.sampled_from([1, 2, 4]), "privacy.q": st.sampled_from([0.2, 1.0]),
    "privacy.z": st.sampled_from([0.5, 2.0]), "seed": st.integers(0, 3), "n_init": st.integers(1, 3),
    "dropout.probability": st.sampled_from([0.0, 0.5, 1.0]), "privacy.S": st.sampled_from([1e-9, 1.0, 1e9]),
    "algorithm.message": st.sampled_from(["sample", "mean"]),
})  # fmt: skip


def invalid_settings(count: int) -> None:
    """Settings with any value at a key are composed, or refused in one sentence."""

    @cases(count)
    @given(key=st.sampled_from(KEYS), value=ANY)
    def check(key, value):
        cfg = compose(*BASE, "algorithm=dp_fts_de", "algorithm.P=2")
        OmegaConf.set_struct(cfg, False)
        OmegaConf.update(cfg, key, value, merge=False)
        try:
            checked_settings(cfg)
        except user_errors() as error:
            one_sentence(error)

    check()


def valid_settings(count: int) -> None:
    """Settings within their rules run two rounds of a tiny problem, with finite numbers and the planned charges."""

    @cases(count)
    @given(chosen=FITTING)
    def check(chosen):
        overrides = [f"{key}={value}" for key, value in chosen.items()]
        with tempfile.TemporaryDirectory() as folder:
            cfg = compose(*BASE, "algorithm=dp_fts_de", *overrides, f"results_dir={folder}")
            summary, where = run_configuration(cfg)
            assert len(Ledger(where / "ledger.jsonl").charges) == summary["n_charges"] == 2
            assert all(map(math.isfinite, summary["curve"]["mean"]))
            assert json.loads((where / "summary.json").read_text())

    check()


ALL = {
    "files": files, "messages": messages, "ledgers": ledgers, "checkpoints": checkpoints,
    "invalid settings": invalid_settings,
}  # fmt: skip
