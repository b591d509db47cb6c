"""`runners.privacy ledger --verify` and `--repair`: touched ledgers are found, and none is repaired to a lower cost."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dpfbo.checkpoint import Checkpoint
from dpfbo.federated.broadcast import RegionVectors
from dpfbo.formats.run_folder import RunFolder
from dpfbo.privacy.coverage import LedgerCoverage
from dpfbo.privacy.ledger import Ledger, LedgerError, digest
from dpfbo.privacy.release import Diagnostics
from dpfbo.records import RoundRecord, ServerRecord
from dpfbo.run_result import Round
from runners.privacy import command
from tests.helpers.charges import ZS, charge, charged, lines_of, rewrite


def call(capsys, *argv):
    """Exit code, standard output, and standard error of the command."""
    code = command.main(["ledger", *map(str, argv)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


class TestVerify:
    def test_a_whole_ledger_is_one_line(self, capsys, tmp_path):
        path = charged(tmp_path / "ledger.jsonl")
        for given in (path, tmp_path):
            code, out, err = call(capsys, given, "--verify")
            assert (code, err) == (0, "") and out.count("\n") == 1
            whole = f"ledger {path} is whole: 5 charges; no line was edited, moved or removed from the middle; "
            assert out == f"{whole}it is unbound: no line names its run\n"
        (answer,) = json.loads(call(capsys, path, "--verify", "--json")[1])
        assert f"{answer}\n" == out

    def test_lines_without_a_chain_are_refused_in_one_sentence(self, capsys, tmp_path):
        path = tmp_path / "ledger.jsonl"
        path.write_text("".join(json.dumps(vars(charge(t))) + "\n" for t in range(2)))
        for what in (["--verify"], ["--delta", "0.01"]):
            code, out, err = call(capsys, path, *what)
            assert (code, out) == (1, "") and err.count("\n") == 1
            assert f"ledger {path} line 1 has no chain: somebody added or edited it, refusing" in err
        assert "has no intact line" in call(capsys, path, "--repair")[2]

    def test_a_ledger_says_which_run_it_covers(self, capsys, tmp_path):
        ledger = Ledger(tmp_path / "{0}.jsonl")
        ledger.bind(LedgerCoverage("{mine}", 3, "generated", "zero-out"))
        words = "it covers setting {mine}, seed 3, data generated, relation zero-out"
        assert call(capsys, ledger.path, "--verify")[1].endswith(f"; {words}\n")

    def test_an_edited_one_is_refused_beside_whole_ones(self, capsys, tmp_path):
        whole, bad = charged(tmp_path / "a.jsonl"), charged(tmp_path / "b.jsonl")
        rewrite(bad, 2, z=100.0)
        code, out, err = call(capsys, whole, bad, tmp_path / "none.jsonl", "--verify")
        assert code == 1 and out.count("\n") == 1 and str(whole) in out
        first, second = err.splitlines()
        assert first.startswith(f"error: ledger {bad} line 3 does not follow from what is before it")
        assert second == f"error: ledger {tmp_path / 'none.jsonl'} does not exist, or is not a file"
        code, out, err = call(capsys, bad, "--delta", "0.01")
        assert (code, out) == (1, "") and "line 3" in err and err.count("\n") == 1

    @pytest.mark.parametrize("record", ["summary", "server.parquet", "checkpoint", "journal"])
    def test_lines_that_are_missing_at_the_end_are_found_by_what_knows_of_them(self, capsys, tmp_path, record):
        values = torch.ones(1, 2, dtype=torch.float64)
        ledger = Ledger(path := tmp_path / "ledger.jsonl")
        for t in range(3):
            ledger.charge(charge(t, digest=digest(values + t)))
        if record == "summary":
            (tmp_path / "summary.json").write_text('{"n_charges": 3, "rng": "os"}')
        elif record == "server.parquet":
            pq.write_table(pa.table({"round": [0, 1, 2]}), tmp_path / record)
        elif record == "journal":
            sent = [{"event": "sent", "round": t, "sigma": 0.5} for t in range(3)]
            (tmp_path / "coordinator.jsonl").write_text("".join(json.dumps(event) + "\n" for event in sent))
        else:
            checkpoint, some = Checkpoint(tmp_path / record), torch.zeros(1, 1, dtype=torch.float64)
            for t in range(3):
                agents = RoundRecord(t, some.long(), some.long(), some[..., None], some[..., None], some, some, some)
                server, private = ServerRecord(t, 1.0, 0.5, 0.5), Diagnostics(1.0, 1.0, 1, 0, 0)
                checkpoint.append(Round(agents, RegionVectors(values + t), server, private, {}))
        assert call(capsys, tmp_path, "--verify")[0] == 0
        path.write_bytes(b"".join(lines_of(path)[:2]))
        code, out, err = call(capsys, tmp_path, "--verify")
        assert (code, out) == (1, "") and err.count("\n") == 1
        assert f"ledger {path} " in err and ": restore the ledger" in err

    def test_a_ledger_in_the_folder_of_a_study_is_found(self, capsys, tmp_path):
        (tmp_path / "server").mkdir()
        path = charged(tmp_path / "server" / "ledger.jsonl")
        assert str(path) in call(capsys, tmp_path, "--verify")[1]

    @pytest.mark.parametrize(
        "options", [["--verify", "--repair"], ["--verify", "--delta", "0.1"], ["--repair", "--agents", "3"]]
    )
    def test_options_that_exclude_each_other(self, capsys, tmp_path, options):
        code, out, err = call(capsys, charged(tmp_path / "ledger.jsonl"), *options)
        assert (code, out) == (1, "") and "--verify and --repair must be given alone" in err

    @pytest.mark.parametrize("what", ["--verify", "--repair"])
    def test_a_fifo_is_refused_at_once(self, capsys, tmp_path, what):
        os.mkfifo(tmp_path / "ledger.jsonl")
        for given in (tmp_path, tmp_path / "ledger.jsonl"):
            code, out, err = call(capsys, given, what)
            assert (code, out) == (1, "") and "does not exist, or is not a file" in err


class TestRepair:
    def test_a_whole_one_stays(self, capsys, tmp_path):
        path = charged(tmp_path / "ledger.jsonl")
        before = path.read_bytes()
        assert call(capsys, path, "--repair")[:2] == (0, f"ledger {path} is whole, 5 charges: nothing to repair\n")
        path.write_bytes(before + b'{"rou')  # a torn end is no damage
        assert call(capsys, path, "--repair")[0] == 0
        assert path.read_bytes() == before + b'{"rou' and list(tmp_path.iterdir()) == [path]

    def test_an_edited_line_costs_as_the_most_expensive_intact_one(self, capsys, tmp_path):
        path = charged(tmp_path / "ledger.jsonl")
        rewrite(path, 2, z=100.0, q=0.01)
        damaged = path.read_bytes()
        code, out, err = call(capsys, tmp_path, "--repair")
        assert (code, err) == (0, "") and out.count("\n") == 1
        assert "5 charges; modified lines, charged at the largest q and smallest z: 3; " in out
        assert "the damaged one is ledger.damaged-1.jsonl" in out
        assert (tmp_path / "ledger.damaged-1.jsonl").read_bytes() == damaged
        assert Ledger(path).charges == [charge(t, 1.0 if t == 2 else z) for t, z in enumerate(ZS)]
        assert call(capsys, path, "--verify")[0] == 0
        assert Ledger(path).charge(charge(9)) and not Ledger(path).charge(charge(2))

    def test_the_originals_of_two_repairs_are_kept(self, capsys, tmp_path):
        path = charged(tmp_path / "ledger.jsonl")
        for k in (1, 2):
            rewrite(path, 2, z=100.0)
            code, out, _ = call(capsys, path, "--repair")
            assert code == 0 and f"the damaged one is ledger.damaged-{k}.jsonl" in out
            assert (tmp_path / f"ledger.damaged-{k}.jsonl").exists()

    def test_where_nothing_tells_the_cost_it_is_refused_and_stays(self, capsys, tmp_path):
        path = charged(tmp_path / "ledger.jsonl", [1.0])
        rewrite(path, 0, z=100.0)
        before = path.read_bytes()
        code, out, err = call(capsys, path, "--repair")
        assert (code, out) == (1, "") and err.count("\n") == 1
        assert "has no intact line that bounds what its damaged ones may have cost: restore it" in err
        assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
        path.write_bytes(b"\0\0\n")
        assert call(capsys, path, "--repair")[0] == 1

    def test_a_ledger_that_a_run_writes_to_is_left_alone(self, capsys, tmp_path):
        folder = RunFolder(tmp_path)
        path = charged(folder.ledger_path)
        rewrite(path, 2, z=100.0)
        before = path.read_bytes()
        with folder.opened():
            assert "a run is writing to ledger" in call(capsys, path, "--repair")[2]
        with folder.hold_ledger():
            assert "a server is writing to ledger" in call(capsys, path, "--repair")[2]
        assert path.read_bytes() == before
        assert call(capsys, path, "--repair")[0] == 0


def test_ledger_errors_name_the_command_that_exists(tmp_path):
    path = charged(tmp_path / "ledger.jsonl")
    rewrite(path, 2, z=100.0)
    with pytest.raises(LedgerError) as error:
        Ledger(path)
    words = str(error.value).split("`")[1].split()
    assert words[:3] == ["python", "-m", "runners.privacy"]
    assert command._parser().parse_args(words[3:]).verify
