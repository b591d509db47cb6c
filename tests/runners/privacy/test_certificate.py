"""The certificate tells what the files of a real release hold, and finds files that contradict each other."""

import hashlib
import json

import pyarrow.parquet as pq
import pytest

from dpfbo.formats.run_folder import ResultsError
from dpfbo.privacy.ledger import LedgerError
from runners.privacy import certificate, command, ledgers
from runners.recorded_run import run_configuration
from tests.helpers.compose import compose
from tests.helpers.small_runs import QUIET, SYNTHETIC

PRIVATE = [
    *SYNTHETIC,
    "algorithm=dp_fts_de",
    "privacy.q=0.5",
    "privacy.z=1",
    "rounds=3",
    "problem.n_agents=12",
    "privacy.delta=0.005",
]


def ran(folder, *settings):
    """The folder of a finished run."""
    return run_configuration(compose(*settings, *QUIET, f"results_dir={folder}"))[1]


@pytest.fixture
def folder(tmp_path):
    return ran(tmp_path, *PRIVATE, "privacy.rng=os")


def failing(folder):
    """The names of the checks that fail."""
    return [check["check"] for check in certificate.certificate(folder)["checks"] if not check["holds"]]


def change_summary(folder, **entries):
    summary = json.loads((folder / "summary.json").read_bytes())
    (folder / "summary.json").write_text(json.dumps({**summary, **entries}))


def test_the_page_has_what_the_ledger_costs(folder, tmp_path):
    facts = certificate.certificate(folder)
    assert failing(folder) == []
    assert facts["epsilon"] == ledgers.added_up([folder / "ledger.jsonl"], facts["delta"])["epsilon"]
    assert [(c["broadcasts"], c["rounds"], c["q"], c["z"]) for c in facts["charges"]] == [(3, [0, 2], 0.5, 1.0)]
    assert list(facts["digests"]) == ["config.yaml", "ledger.jsonl", "server.parquet"], "files that anybody may read"
    for name, digest in facts["digests"].items():
        assert digest == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    page, data = certificate.write(facts, tmp_path / "filed")
    assert json.loads(data.read_text()) == facts
    text = page.read_text()
    for name, epsilon in facts["epsilon"].items():
        assert f"| {name} | {epsilon:.2f} |" in text
    assert "| 3 | 0 to 2 | 0.5 | 1 |" in text and "zero-out: one agent's messages" in text and "FAILS" not in text
    assert "Not audited" in text


def test_rounds_with_other_noise_stand_in_rows_of_their_own(tmp_path):
    facts = certificate.certificate(ran(tmp_path, *PRIVATE, "privacy.rng=os", "privacy/schedule=power"))
    assert [c["broadcasts"] for c in facts["charges"]] == [1, 1, 1]


def test_the_audit_is_that_of_the_settings(folder):
    facts = {**certificate.certificate(folder), "audit": certificate.audited(folder, 0)}
    assert facts["audit"]["sound"] and facts["audit"]["n_agents"] == 12
    assert (
        f"Audited: {len(facts['audit']['checks'])} checks of the setting's server: nothing found."
        in certificate.markdown(facts)
    )


def test_a_summary_that_says_less_than_the_ledger_fails(folder):
    epsilon = json.loads((folder / "summary.json").read_bytes())["epsilon"]
    change_summary(folder, epsilon={**epsilon, "rdp": 0.9 * epsilon["rdp"]}, n_charges=4)
    assert failing(folder) == ["every broadcast is charged", "the summary's epsilon is not below the ledger's"]
    assert "FAILS" in certificate.markdown(certificate.certificate(folder))


def test_noise_that_no_charge_has_fails(folder):
    server = pq.read_table(folder / "server.parquet")
    place = server.schema.get_field_index("sigma")
    sigma = [value / 2 for value in server["sigma"].to_pylist()]
    pq.write_table(server.set_column(place, server.schema.field("sigma"), [sigma]), folder / "server.parquet")
    assert failing(folder) == ["the noise of every broadcast is the ledger's"]


def test_a_record_with_private_numbers_fails(folder):
    server = pq.read_table(folder / "server.parquet")
    pq.write_table(server.append_column("snr", [[0.5] * len(server)]), folder / "server.parquet")
    assert failing(folder) == ["the server's record holds released numbers alone"]


@pytest.mark.parametrize(
    ("delta", "n_agents", "holds"),
    [(0.1, 12, False), (4**-1.1, 4, False), (29**-1.1, 29, False), (0.0101, 4, False), (0.009, 100, False),
     (0.01, 4, True), (200**-1.1, 200, True), (0.0069, 100, True)],
)  # fmt: skip
def test_a_delta_is_small_if_below_one_percent_and_below_one_agent(folder, delta, n_agents, holds):
    change_summary(folder, delta=delta, n_agents=n_agents)
    (check,) = [c for c in certificate.certificate(folder)["checks"] if c["check"] == "delta is small"]
    assert check["holds"] == holds and check["words"].startswith("no: ") != holds
    words = f"delta is {delta:.3g}; it should be at most 0.01, and at most 0.7 / {n_agents} agents = "
    assert check["words"].removeprefix("no: ").startswith(words)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda f: change_summary(f, rng="seeded"), ResultsError, "is a simulation"),
        (lambda f: change_summary(f, private=False), ResultsError, "claims no privacy"),
        (lambda f: (f / "summary.json").unlink(), ResultsError, "summary.json is missing"),
        (lambda f: (f / "ledger.jsonl").unlink(), ResultsError, "ledger.jsonl is missing"),
        (lambda f: (f / "summary.json").write_text("{"), ResultsError, "cannot be read"),
        (lambda f: (f / "server.parquet").write_bytes(b"PAR1"), ResultsError, "server.parquet cannot be read"),
        (lambda f: (f / "ledger.jsonl").write_text("{}\n" * 3), LedgerError, "ledger"),
    ],
)
def test_what_cannot_be_certified_is_refused(folder, change, error, says):
    change(folder)
    with pytest.raises(error, match=says):
        certificate.certificate(folder)


def test_the_command(folder, capsys):
    assert command.main(["certificate", str(folder)]) == 0
    assert "# Privacy certificate" in capsys.readouterr().out
    assert {"certificate.md", "certificate.json"} <= {path.name for path in folder.iterdir()}
    change_summary(folder, delta=0.1)
    assert command.main(["certificate", str(folder), "--json", "--out", str(folder / "filed")]) == 3
    assert json.loads(capsys.readouterr().out) == json.loads((folder / "filed.json").read_text())


def test_the_command_refuses_in_one_sentence(tmp_path, capsys):
    assert command.main(["certificate", str(tmp_path / "absent")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: a certificate needs the folder of a finished run") and said.count("\n") == 1


def test_an_audit_has_enough_trials_for_a_bound(folder, capsys):
    assert command.main(["certificate", str(folder), "--audit", "1"]) == 1
    assert "--audit must be 0 or at least" in capsys.readouterr().err
