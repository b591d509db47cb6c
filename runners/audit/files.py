"""Search every file of a run for secret numbers, which are computed from a sum before noise is added.

The audit makes two runs with privacy.rng=os and replaces all releases by the same fixed numbers (`FixedRelease`). If
the runs are federated, the audit makes the second run lose many messages, so that the sums of the two runs differ. No
file may have a column that only simulations may write, such as `clip_fraction`. No file may have a number that
`_secrets` computes from a sum. Apart from times, random names and a curator's measurements, the files of the two runs
must be equal.
"""

import io
import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from omegaconf import DictConfig
from rich.console import Console
from torch import Tensor

from dpfbo.formats.record_tables import SERVER_SCHEMA, released
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.noise import Gaussian
from dpfbo.run_result import Round
from runners.compose.composition import Composition, build, experiment_of
from runners.compose.configuration import composed
from runners.compose.outsourced import OutsourcedExperiment
from runners.compose.settings import FederatedSettings
from runners.recorded_run import record_run

ROUNDS = 3
PRIVATE = set(SERVER_SCHEMA.names) - set(released(SERVER_SCHEMA).names)
_TIMES = {"seconds", "executor"}  # entries that differ from run to run
_OF_TIMES = {"digest", "before"}  # entries of a round in a checkpoint: digests that cover its seconds
_SAME, _TOLD = 1e-12, 1e-6  # relative differences: of equal numbers; of secrets that a public number gives away
_DECIMAL = re.compile(rb"-?\d+\.\d+(?:[eE][-+]?\d+)?")
_LOST = 0.5  # share of the messages received by the first run that the second run loses
_TIMED = (".log", ".html", "progress.json", "wandb.json")  # endings of files that hold times or random names
_MEASURED = ("rounds.parquet", "summary.json", ".npz", ".zip")  # endings of files with a curator's measurements
_TRACKER = "wandb"  # folder of files with random names and times
_DURING = "during"  # folder of copies that were made before the last round ended


@dataclass(frozen=True)
class FixedRelease(Gaussian):
    """A stand-in for noise in the audit: the release ignores the sum and depends only on sigma and the round.

    notes: the folder in which each round's sum, release, sigma and sensitivity are saved.
    """

    notes: str

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        values = sigma * np.random.default_rng(round).standard_normal(tuple(total.shape))
        law = np.array([sigma, sensitivity])
        np.savez(Path(self.notes) / f"{round}.npz", total=total.numpy(), values=values, law=law)
        return torch.from_numpy(values)


@dataclass
class FileSearch:
    """The result of a search.

    files: what was done with each file, `searched` or `searched and compared`. The key is the file's path, relative to
    the searched folder. findings: one sentence for each finding.
    """

    files: dict[str, str] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.findings


def _with_fixed_release(composition: Composition, notes: Path, lossy: bool) -> Composition:
    """Return a copy of `composition` whose settings and experiment use `FixedRelease` as the noise.

    If the run is federated and `lossy` is True, the copy also halves the probability that a message arrives.
    """
    s, problem, noise = composition.settings, cast(Any, composition.experiment.problem), FixedRelease(str(notes))
    changed: Any
    if isinstance(s, FederatedSettings):
        kept = 1 - s.dropout.probability
        lost = 1 - _LOST * kept if lossy else s.dropout.probability
        privacy = replace(s.privacy, mechanism=replace(s.privacy.mechanism, noise=noise))
        changed = replace(s, privacy=privacy, dropout=replace(s.dropout, probability=lost))
    else:
        changed = replace(s, transform=replace(cast(Any, s.transform), noise=noise))
    return replace(composition, settings=changed, experiment=experiment_of(changed, problem))


def search(overrides: Sequence[str], rounds: int = ROUNDS, on_step: Callable[[], None] = lambda: None) -> FileSearch:
    """Make two runs in a temporary folder, and search their files for secret numbers.

    The runs evaluate the real objective. on_step: called in each run, after the initial points and after each round.
    Raises ValueError if the algorithm claims no privacy.
    """
    with tempfile.TemporaryDirectory(prefix="audit") as scratch:
        place = Path(scratch)
        cfg = composed([*overrides, "privacy.rng=os", f"rounds={rounds}", f"results_dir={place / 'results'}"])
        experiment = build(cfg)
        if not experiment.private:
            name = experiment.settings.algorithm.name
            raise ValueError(f"algorithm={name} claims no privacy: there is nothing to audit")
        first, second = (_left(cfg, place, lossy, on_step) for lossy in (False, True))
        secrets = np.union1d(*(_secrets(folder / "notes") for folder in (first, second)))
        curator = isinstance(experiment, OutsourcedExperiment)
        return compare(first / "results", second / "results", secrets, secret_order=curator)


def _left(cfg: DictConfig, place: Path, lossy: bool, on_step: Callable[[], None]) -> Path:
    """Make one run; return a folder with the server's sums in `notes` and the run's files in `results`."""
    folder, results = place / ("lossy" if lossy else "whole"), place / "results"
    (folder / "notes").mkdir(parents=True)
    world = _with_fixed_release(Composition.of(cfg), folder / "notes", lossy)

    def copy(done: Round) -> None:
        if done.agents.round == world.settings.rounds:
            shutil.copytree(results, folder / _DURING)
        on_step()

    record_run(world, copy, single=True)
    results.rename(folder / "results")
    (folder / _DURING).rename(folder / "results" / _DURING)
    return folder


def _secrets(notes: Path) -> np.ndarray:
    """Return the sorted absolute values of the secret numbers of all saved rounds.

    The secret numbers are the entries of each sum, the entries of its noise (the release minus the sum), and statistics
    of both, such as norms. Integers are left out. Secret numbers that nearly equal a public number are left out, too.
    The public numbers are the entries, sigma and sensitivity of each release.
    """
    found, public = list[float](), list[float]()
    for path in notes.glob("*.npz"):
        with np.load(path) as noted:
            total, values = noted["total"], noted["values"]
            public += noted["law"].tolist()
        for s, b in [(total, values), *zip(np.atleast_2d(total), np.atleast_2d(values), strict=True)]:
            if not s.any():
                continue
            n = b - s
            sizes = [np.linalg.norm(s), np.linalg.norm(n), np.abs(s).max(), np.abs(n).max(), s.mean(), s.std()]
            both = [sizes[0] / sizes[1], sizes[0] / np.linalg.norm(b), (s * b).sum(), (s * b).sum() / sizes[0]]
            found += [power for size in (*sizes, *both) for power in (size, size**2, 1 / size if size else 0.0)]
            found += [*s.ravel(), *n.ravel()]
            public += [*b.ravel()]
    numbers = np.unique(np.abs(np.array(found)))
    numbers = numbers[np.isfinite(numbers) & (numbers != np.round(numbers))]  # any file may hold an integer by chance
    return numbers[~_among(numbers, np.unique(np.abs(np.array(public))), _TOLD)]


def compare(first: Path, second: Path, secrets: np.ndarray, secret_order: bool = False) -> FileSearch:
    """Search all files of two folders, and compare the folders.

    secrets: sorted absolute values that no file may hold. secret_order: True if the order of the released rows is
    secret; files with measurements are then searched but not compared.
    """
    found = FileSearch()
    for path in sorted(p for folder in (first, second) for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(first if path.is_relative_to(first) else second))
        leaves = list(_leaves(name, path.read_bytes()))
        private = {column for leaf in leaves for column in _names(*leaf)} & PRIVATE
        found.findings += [f"{name} has {column!r}" for column in sorted(private)]
        numbers = np.concatenate([_numbers(*leaf) for leaf in leaves])
        if (near := _among(numbers, secrets)).any():
            found.findings.append(f"{name} holds {numbers[near][0]:.12g}, a function of a sum without its noise")
        found.files.setdefault(name, "searched")
        if (secret_order and name.endswith(_MEASURED)) or _TRACKER in path.parts:
            continue
        if not (first / name).is_file() or not (second / name).is_file():
            found.findings.append(f"{name} exists in one run only, although the releases are the same")
        elif not name.endswith(_TIMED):
            found.files[name] = "searched and compared"
            left, right = (_parts(name, (folder / name).read_bytes()) for folder in (first, second))
            places = sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))
            if places:
                found.findings.append(f"{name} depends on more than the releases: {', '.join(places[:3])}")
    return found


def show(found: FileSearch) -> None:
    """Print the files, the findings and the verdict."""
    console = Console(highlight=False)
    for name, how in found.files.items():
        console.print(f"{how:<22}{name}", soft_wrap=True, markup=False)
    for finding in found.findings:
        console.print(finding, soft_wrap=True, markup=False)
    console.print("nothing found" if found.sound else "the files reveal MORE than the releases")


def _leaves(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of a file, or of all members of an archive."""
    if not name.endswith((".zip", ".npz")):
        yield name, content
        return
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.namelist():
            yield from _leaves(f"{name}/{member}", archive.read(member))


def _table(name: str, content: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(content)) if name.endswith(".parquet") else pa.table({})


def _entries(name: str, content: bytes) -> dict[str, Any] | None:
    """Return the values of a .json file, a .jsonl file or a checkpoint's meta.npy; None for any other file.

    The key of each value is the path that leads to the value, such as `/a/0`. Times are left out, and so are digests of
    data that contain times.
    """
    if name.endswith(".json"):
        return dict(_flat(json.loads(content)))
    if name.endswith(".jsonl"):
        return dict(_flat([json.loads(line) for line in content.splitlines()]))
    if name.endswith("/meta.npy"):
        entries = json.loads(np.load(io.BytesIO(content)).item())
        return dict(_flat({key: value for key, value in entries.items() if key not in _OF_TIMES}))
    return None


def _flat(node: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for each leaf of a tree of dictionaries and lists. A path is a text such as `/a/0`.

    Entries with the keys `seconds` and `executor` are skipped, because they differ from run to run.
    """
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if pairs is None:
        yield place, node
        return
    for key, value in pairs:
        if key not in _TIMES:
            yield from _flat(value, f"{place}/{key}")


def _names(name: str, content: bytes) -> set[str]:
    places = _entries(name, content) or {}
    return {*_table(name, content).column_names, *(part for place in places for part in place.split("/"))}


def _numbers(name: str, content: bytes) -> np.ndarray:
    """Return the absolute values of all finite numbers in a file.

    The numbers are the decimals in the text, the entries of the float columns, and all sequences of eight consecutive
    bytes, each read as one float.
    """
    found = [np.array([float(text) for text in _DECIMAL.findall(content)])]
    found += [np.frombuffer(content[i : len(content) - (len(content) - i) % 8], dtype="<f8") for i in range(8)]
    columns = (column.combine_chunks() for column in _table(name, content).columns)
    plain = (column.flatten() if pa.types.is_list(column.type) else column for column in columns)
    found += [column.to_numpy(zero_copy_only=False) for column in plain if pa.types.is_floating(column.type)]
    sizes = np.abs(np.concatenate([part.astype(float) for part in found]))
    return sizes[np.isfinite(sizes)]


def _among(numbers: np.ndarray, others: np.ndarray, tolerance: float = _SAME) -> np.ndarray:
    """Return True for each number that equals one of the sorted others, up to a relative difference."""
    if not len(others):
        return np.zeros(len(numbers), dtype=bool)
    at = np.searchsorted(others, numbers)
    gaps = (np.abs(others[np.clip(at - k, 0, len(others) - 1)] - numbers) for k in (0, 1))
    found: np.ndarray = np.minimum(*gaps) <= tolerance * numbers
    return found & (numbers > 0)


def _parts(name: str, content: bytes) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for leaf, inner in _leaves(name, content):
        entries = _entries(leaf, inner)
        parts |= {leaf: inner} if entries is None else {leaf + place: value for place, value in entries.items()}
    return parts
