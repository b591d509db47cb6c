"""The files of a real run: an attack on private numbers beside a broadcast, and the search that finds them."""

import json
import stat
import struct
from dataclasses import replace

import pytest
import torch

from analysis import figures, report
from dpfbo import tables
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.server import Server
from dpfbo.federated.weights.uniform import Uniform
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.entropy import SystemEntropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.space.regions import Regions
from runners.audit import command, files
from runners.board import command as board
from runners.privacy import command as privacy
from tests.helpers.small_runs import FAST, QUIET
from tests.helpers.wandb_records import own_wandb  # noqa: F401

SMALL = ["problem.n_agents=8", "problem.grid_size=50", "n_init=3", "algorithm.M=20", *FAST, *QUIET]
TABLE = ["problem=grid_gp", "problem.side_points=10", *QUIET]
FAMILIES = {
    "dp_fts": [*SMALL, "algorithm=dp_fts"],
    "dp_fts_de": [*SMALL, "algorithm=dp_fts_de", "privacy.q=0.6"],
    "dp_fts_de_plus": [*SMALL, "algorithm=dp_fts_de_plus"],
    "a box": [*SMALL[:1], "problem=branin", "n_init=3", "acquisition.n_candidates=40", *FAST, *QUIET],
    "dp_prior": [*SMALL, "algorithm=dp_prior", "privacy.epsilon=1"],
    "gaussian_gp_ucb": [*TABLE, "algorithm=gaussian_gp_ucb"],
    "histogram_gp_ucb": [*TABLE, "algorithm=histogram_gp_ucb"],
}
RECORDS = ("config.yaml", "ledger.jsonl", "rounds.parquet", "rounds.zip", "server.parquet", "summary.json")

N, M, S = 20, 6, 3.0
DIRECTION = torch.ones(M, dtype=torch.float64) / M**0.5


def released(n_sending, entropy):
    """A release of a real server, and its record as a run writes it, with 20 agents of whom so many send."""
    mechanism = SubsampledGaussian(1.0, 1.0, S)
    curve = EpsilonCurve(Pld(), [mechanism.dp_event(torch.full((1, N), 1 / N), 0)], 1e-2)
    server = Server(N, M, Regions(1, 1), Uniform(), mechanism, entropy, Ledger(), curve)
    messages = [10 * DIRECTION if n < n_sending else None for n in range(N)]
    sent, record, private = server.round(0, messages)
    return sent.values[0], tables.server_table([record], None if private is None else [private])


def told_apart(values, table):
    """The number of agents that sent something, by whoever knows the direction of all messages."""
    worlds = {n: S * n / N * DIRECTION for n in (N, N - 1)}
    if "snr" in table.column_names:
        (snr,) = table["snr"].to_pylist()
        gaps = {n: abs(float(s.norm() / (values - s).norm()) - snr) for n, s in worlds.items()}
    else:
        gaps = {n: float((values - s).norm()) for n, s in worlds.items()}  # the likelihood of the release alone
    return min(gaps, key=gaps.get)


def attack(entropy):
    """The number of releases, of 40, of which the attack tells whether one agent was silent."""
    return sum(told_apart(*released(n, entropy)) == n for n in [N, N - 1] * 20)


def test_the_record_of_a_real_release_tells_no_more_than_the_release():
    # by the release alone, with half a standard deviation between the worlds: 28 expected, standard error 3
    assert attack(SystemEntropy()) < 38


def test_a_record_with_private_numbers_tells_who_was_silent():
    assert attack(SystemEntropy(reproducible=True)) == 40, "a simulation's record, of noise that no seed repeats"


def kinds(found, how=""):
    """The names of the files without their folders, of those that were searched in this way."""
    return {name.rsplit("/")[-1] for name, done in found.files.items() if how in done}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_real_run_leaves_only_what_follows_from_its_releases(family):
    found = files.search(FAMILIES[family])
    assert found.findings == [] and kinds(found) >= {*RECORDS, "lineage.json", "progress.json", "round-00003.npz"}
    alone = {"summary.json", "rounds.parquet"} if family.endswith("gp_ucb") else set()
    assert kinds(found, "compared") >= set(RECORDS) - alone - {"rounds.zip"}


def more_files(monkeypatch, write):
    """Let every finished run write more: `write` gets its folder."""
    record_run = files.record_run

    def recorded(*arguments, **options):
        summary, folder = record_run(*arguments, **options)
        write(folder)
        return summary, folder

    monkeypatch.setattr(files, "record_run", recorded)


def test_so_do_tracker_certificate_board_and_report(own_wandb, monkeypatch):  # noqa: F811
    def write(folder):
        results = folder.parents[2]
        assert privacy.main(["certificate", str(folder)]) == 0
        assert board.main([str(folder.parents[1]), "--file", str(folder / "board.html")]) == 0
        assert report.main(["single", f"results_dir={results}", "--out", str(folder / "report.html")]) == 0
        assert figures.main(["single", f"results_dir={results}", "--out", str(folder / "figures")]) == 0
        made = [folder / "report.html", *(folder / "figures").iterdir()]
        assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600}, "they show the agents' own values"

    more_files(monkeypatch, write)
    wandb = ["tracker.wandb.mode=offline", "tracker.wandb.show=all"]
    shown = ["privacy.accountant=pld", "privacy.accountants=[pld]", "privacy.delta=1e-3"]
    found = files.search([*FAMILIES["dp_fts_de"], *shown, *wandb])
    assert found.findings == []
    pages = {"certificate.json", "certificate.md", "board.html", "report.html", "single_regret_by_epsilon.png"}
    assert kinds(found) >= {*pages, "wandb.json"}
    assert any(name.endswith(".wandb") for name in kinds(found))


@pytest.fixture
def private(monkeypatch):
    """The private numbers of the real releases that a faulty server hands out."""
    seen, sound, seeded = [], Server.round, SystemEntropy(reproducible=True)

    def leaky(server, *arguments):
        made = sound(replace(server, entropy=seeded), *arguments)
        seen.append(made[2])
        return made

    monkeypatch.setattr(Server, "round", leaky)
    return seen


def test_the_record_as_it_was_is_found(private, monkeypatch, capsys):
    table = tables.server_table
    monkeypatch.setattr(tables, "server_table", lambda server, _: table(server, private[-len(server) :]))
    assert command.main(["--files", *FAMILIES["dp_fts_de"]]) == 3
    said = " ".join(capsys.readouterr().out.split())
    for name in ("snr", "clip_fraction", "n_chosen", "n_rejected", "n_dropped"):
        assert f"server.parquet has '{name}'" in said
    assert "server.parquet holds" in said and "server.parquet depends on more than the releases" in said
    assert "the files reveal MORE than the releases" in said


LEAKS = {
    "a norm in a log": ("server.log", lambda d: f"signal {d.signal!r}", "server.log holds"),
    "the noise as bytes": ("state.bin", lambda d: struct.pack("<3sd", b"abc", d.noise), "state.bin holds"),
    "a count by another name": ("more.json", lambda d: json.dumps({"seen": d.n_dropped}), "more.json depends on"),
    "a rounded ratio": ("page.md", lambda d: f"{d.signal / d.noise:.2f}", "page.md depends on"),
    "a file in one run only": ("lost", lambda d: "yes" if d.n_dropped else None, "lost exists in one run only"),
}


@pytest.mark.parametrize(("name", "content", "says"), LEAKS.values(), ids=LEAKS)
def test_other_leaks_are_found(private, monkeypatch, name, content, says):
    def write(folder):
        told = content(next(one for one in private[-3:] if one.signal))
        if told is not None:
            (folder / name).write_bytes(told if isinstance(told, bytes) else told.encode())

    more_files(monkeypatch, write)
    (finding, *_) = [one for one in files.search([*FAMILIES["dp_fts_de"], "privacy.q=1"]).findings if name in one]
    assert says in finding


def test_what_claims_nothing_is_not_searched(capsys):
    assert command.main(["--files", *SMALL, "algorithm=fts_de"]) == 1
    assert "algorithm=fts_de claims no privacy: there is nothing to audit" in capsys.readouterr().err
    assert command.main(["--files", *SMALL, "--trials", "7000"]) == 1
    assert "--trials has no effect on --files" in capsys.readouterr().err
