"""python -m runners.audit: its output, files, refusals and exit codes."""

import json
from dataclasses import fields, replace

import pytest

from dpfbo.audit.secure.examine import SITE_CHECKS
from dpfbo.audit.server.examine import CHECKS
from dpfbo.privacy.ledger import Ledger
from runners.audit import command
from tests.planted.noise import FaultyNoise, half
from tests.planted.prior import RawEvidence

SMALL = [
    "rounds=3", "problem.n_agents=8", "problem.grid_size=50", "algorithm.M=10", "privacy.q=1",
    "privacy.sensitivity=tight",
]  # fmt: skip


def audited(folder, *more):
    return command.main([*SMALL, "--out", str(folder), "--trials", "60", *more])


def test_prints_the_claim_beside_the_bounds_and_writes_both_files(tmp_path, capsys):
    assert audited(tmp_path, "--json", "--rounds", "2") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((tmp_path / "audit.json").read_text())
    assert (shown["n_agents"], shown["broadcasts"], shown["rounds"], shown["accountant"]) == (8, 3, 2, "pld")
    assert (shown["relation"], shown["sound"]) == ("zero-out", True)
    assert [c["check"] for c in shown["checks"]] == list(CHECKS)
    assert all(c["holds"] and c["words"] for c in shown["checks"])
    found = shown["two_worlds"]
    assert 0 <= found["bound"] <= found["claimed_epsilon"]
    assert found["holds"] and not found["charges_vary"] and found["violated_at"] is None
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_tables_say_epsilon_with_delta_relation_and_accountant(tmp_path, capsys):
    assert audited(tmp_path) == 0
    text = capsys.readouterr().out
    for word in (
        "claimed",
        "bound",
        "pld from the ledger, delta 0.102 (large",
        "confidence 95%",
        *CHECKS,
    ):
        assert word in text
    assert "VIOLATED" not in text and "FAILS" not in text and "nothing found" in text


def test_a_violated_claim_exits_with_3(tmp_path, capsys, monkeypatch):
    real = command.build

    def faulty(cfg):
        experiment = real(cfg)
        study = replace(experiment.study, mechanism=replace(experiment.study.mechanism, noise=FaultyNoise(half)))
        return replace(experiment, study=study)

    monkeypatch.setattr(command, "build", faulty)
    assert audited(tmp_path, "--trials", "300") == 3
    text = capsys.readouterr().out
    assert "VIOLATED at epsilon" in text and "FAILS" in text and "does NOT hold" in text
    assert audited(tmp_path, "--trials", "0", "--json") == 3
    failed = {c["check"] for c in json.loads(capsys.readouterr().out)["checks"] if not c["holds"]}
    assert "noise" in failed


PRIOR = ["algorithm=dp_prior", "problem.n_agents=8", "problem.grid_size=50", "algorithm.M=10", "rounds=3"]


def test_the_private_prior_is_audited_from_its_agents_to_its_broadcast(tmp_path, capsys):
    arguments = [*PRIOR, "privacy.epsilon=1", "--trials", "200", "--out", str(tmp_path), "--json"]
    assert command.main(arguments) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["algorithm"], shown["broadcasts"], shown["features"], shown["sound"]) == ("dp_prior", 1, 10, True)
    words = {c["check"]: c["words"] for c in shown["checks"]}
    assert list(words) == list(CHECKS)
    assert words["post-processing"].startswith("16 broadcasts with equal releases")
    assert words["public design"] == "the server's sums are public; the first queries are public in 30 worlds"
    assert words["own data"].startswith("agent ")
    found = shown["two_worlds"]
    assert found["claimed_epsilon"] == pytest.approx(1, abs=0.01)
    assert found["bound"] <= found["claimed_epsilon"] and found["holds"]


NOBODY = ["privacy.trust=nobody", "privacy.max_dropouts=2", "privacy.colluders=1"]


def test_without_a_trusted_server_the_view_of_colluders_and_the_sites_are_audited(tmp_path, capsys):
    arguments = [*PRIOR, *NOBODY, "privacy.epsilon=4", "--trials", "200", "--out", str(tmp_path), "--json"]
    assert command.main(arguments) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [c["check"] for c in shown["checks"]] == [*CHECKS, *SITE_CHECKS]
    assert shown["attacked"].startswith("the sum with the noise shares of 5 of 8 sites")
    found = shown["two_worlds"]
    assert found["claimed_epsilon"] == pytest.approx(4, abs=0.01)
    assert 0.5 < found["bound"] < found["claimed_epsilon"] and found["holds"]


def test_sites_with_a_fault_exit_with_3(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dpfbo.secure.site.SumSite.new_seed", staticmethod(lambda: bytes(16)))
    monkeypatch.setattr("runners.audit.server.examine", lambda *given: [])
    assert command.main([*PRIOR, *NOBODY, "privacy.epsilon=4", "--trials", "0", "--out", str(tmp_path), "--json"]) == 3
    failed = {c["check"] for c in json.loads(capsys.readouterr().out)["checks"] if not c["holds"]}
    assert "seeds" in failed and failed <= set(SITE_CHECKS)


def test_a_private_prior_that_tells_more_than_its_release_exits_with_3(tmp_path, capsys, monkeypatch):
    real = command.build

    def faulty(cfg):
        experiment = real(cfg)
        sound = experiment.server(Ledger())
        server = RawEvidence(**{f.name: getattr(sound, f.name) for f in fields(sound)})
        object.__setattr__(experiment, "server", lambda ledger: server)
        return experiment

    monkeypatch.setattr(command, "build", faulty)
    assert command.main([*PRIOR, "--trials", "0", "--out", str(tmp_path), "--json"]) == 3
    failed = {c["check"] for c in json.loads(capsys.readouterr().out)["checks"] if not c["holds"]}
    assert failed == {"post-processing"}


def test_checks_alone_need_no_trials_and_operating_system_entropy_is_audited(tmp_path, capsys):
    assert audited(tmp_path, "privacy.rng=os", "privacy.q=0.5", "--trials", "0") == 0
    assert not (tmp_path / "audit.png").exists()
    assert json.loads((tmp_path / "audit.json").read_text())["two_worlds"] is None


def test_fixed_size_is_audited_under_replace_one(tmp_path, capsys):
    fixed = ["privacy.sampling=fixed_size", "privacy.accountant=fixed_size", "privacy.q=0.5"]
    assert audited(tmp_path, *fixed, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["relation"] == "replace-one"
    assert shown["two_worlds"]["holds"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["algorithm=ts"], 1, "algorithm=ts claims no privacy: there is nothing to audit"),
        (["algorithm=fts_de"], 1, "algorithm=fts_de claims no privacy"),
        (["privacy.z=0"], 1, "no finite epsilon is claimed"),
        (["privacy.accountant=gdp"], 1, "needs an accountant whose epsilon is a guarantee"),
        (["--rounds", "4"], 1, "--rounds must be at most the 3 broadcasts of the run, got 4"),
        (["privacy.q=2"], 1, "privacy.q (sampling_probability) must lie in (0, 1], got 2"),
        (["privcy.q=1"], 2, "unknown override 'privcy.q' (did you mean 'privacy.q'?)"),
    ],
)
def test_bad_input_is_one_sentence(arguments, code, says, tmp_path, capsys):
    assert audited(tmp_path / "out", *arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert says in captured.err
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("arguments", [["--trials", "5"], ["--rounds", "0"], ["--seed", "-1"], ["--nope"]])
def test_bad_options_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1


def test_an_outsourced_release_says_a_large_delta_in_words(tmp_path, capsys):
    settings = ["algorithm=gaussian_gp_ucb", "problem=branin_grid", "privacy.delta=0.05"]
    assert command.main([*settings, "--trials", "40", "--out", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    large = "(large: it allows a chance of 5% that epsilon protects nobody; 0.001 is usual)"
    assert f"delta 0.05 {large}, relation: one row" in shown
