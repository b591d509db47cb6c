"""Fetching against a local server that drops connections, ignores ranges and sends wrong bytes."""

from __future__ import annotations

import errno
import hashlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runners.fetch import command
from runners.fetch.command import main
from runners.fetch.data_files import DataFile
from tests.helpers.servers import ATTEMPTS, CONTENT, Behaviour, hasten, serving

HALF = len(CONTENT) // 2


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Behaviour]:
    """A running server, the address of the registry's only entry `sample`."""
    behaviour = Behaviour()
    with serving(behaviour) as address:
        _register(monkeypatch, f"{address}/sample.bin")
        yield behaviour


def _register(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    hasten(monkeypatch)
    sample = DataFile(
        name="sample",
        path="set/sample.bin",
        url=url,
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        bytes=len(CONTENT),
        description="random bytes",
        licence="none",
    )
    monkeypatch.setattr(command, "DATA_FILES", {"sample": sample})


def _target(root: Path) -> Path:
    return root / "set" / "sample.bin"


def _part(root: Path) -> Path:
    return root / "set" / "sample.bin.part"


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _fetch(root: Path, *options: str) -> int:
    return main(["sample", f"data_dir={root}", *options])


def _error(capsys: pytest.CaptureFixture[str]) -> str:
    """The error on standard error: exactly one line, after notes on further attempts."""
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if "trying again" not in line]
    assert len(lines) == 1, err
    assert "Traceback" not in out + err
    return lines[0]


def test_a_whole_download_lands_in_place(server: Behaviour, tmp_path: Path) -> None:
    assert _fetch(tmp_path) == 0
    assert _target(tmp_path).read_bytes() == CONTENT
    assert not _part(tmp_path).exists()
    assert server.asked == [None]


def test_a_dropped_connection_resumes_where_it_broke_off(server: Behaviour, tmp_path: Path) -> None:
    server.drop_after = [HALF]
    assert _fetch(tmp_path) == 0
    assert _target(tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={HALF}-"]
    assert server.sent_bytes == len(CONTENT) < 2 * len(CONTENT)


def test_a_drop_is_noticed_where_no_length_was_declared(server: Behaviour, tmp_path: Path) -> None:
    server.declare_length = False
    server.drop_after = [HALF]
    assert _fetch(tmp_path) == 0
    assert server.asked == [None, f"bytes={HALF}-"]
    assert _target(tmp_path).read_bytes() == CONTENT


def test_when_every_attempt_drops_the_same_command_resumes(
    server: Behaviour, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.drop_after = [1000] * ATTEMPTS
    assert _fetch(tmp_path) == 1
    assert f"{1000 * ATTEMPTS} bytes are kept, the same command resumes" in _error(capsys)
    assert not _target(tmp_path).exists()
    assert _part(tmp_path).read_bytes() == CONTENT[: 1000 * ATTEMPTS]
    assert _fetch(tmp_path) == 0
    assert server.asked[-1] == f"bytes={1000 * ATTEMPTS}-"
    assert _target(tmp_path).read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server: Behaviour, tmp_path: Path) -> None:
    server.ranges = False
    server.drop_after = [HALF]
    assert _fetch(tmp_path) == 0
    assert server.asked == [None, f"bytes={HALF}-"]
    assert server.sent_bytes == HALF + len(CONTENT)
    assert _target(tmp_path).read_bytes() == CONTENT


def test_another_range_than_asked_for_starts_over(server: Behaviour, tmp_path: Path) -> None:
    _write(_part(tmp_path), CONTENT[:HALF])
    server.range_shift = 7
    assert _fetch(tmp_path) == 0
    assert server.asked == [f"bytes={HALF}-", None]
    assert _target(tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_already_whole_is_not_sent_again(server: Behaviour, tmp_path: Path) -> None:
    _write(_part(tmp_path), CONTENT)
    assert _fetch(tmp_path) == 0
    assert server.sent_bytes == 0
    assert _target(tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_too_long_starts_over(server: Behaviour, tmp_path: Path) -> None:
    _write(_part(tmp_path), CONTENT + b"tail")
    assert _fetch(tmp_path) == 0
    assert server.asked == [f"bytes={len(CONTENT) + 4}-", None]
    assert _target(tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_behind(
    server: Behaviour, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.content = b"\0" + CONTENT[1:]
    assert _fetch(tmp_path) == 1
    message = _error(capsys)
    assert hashlib.sha256(CONTENT).hexdigest() in message
    assert hashlib.sha256(server.content).hexdigest() in message
    assert list((tmp_path / "set").iterdir()) == []


def test_more_bytes_than_the_file_has_are_not_stored(
    server: Behaviour, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.content = CONTENT + b"tail"
    assert _fetch(tmp_path) == 1
    assert f"more than {len(CONTENT)} bytes" in _error(capsys)
    assert list((tmp_path / "set").iterdir()) == []


def test_an_http_error_is_final(server: Behaviour, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.statuses = [404] * ATTEMPTS
    assert _fetch(tmp_path) == 1
    assert "HTTP 404 Not Found" in _error(capsys)
    assert len(server.asked) == 1
    assert list((tmp_path / "set").iterdir()) == []


def test_a_busy_server_is_asked_again(server: Behaviour, tmp_path: Path) -> None:
    server.statuses = [503, 429]
    assert _fetch(tmp_path) == 0
    assert len(server.asked) == 3


def test_an_unreachable_host_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        _register(monkeypatch, f"http://127.0.0.1:{unused.getsockname()[1]}/sample.bin")
        assert _fetch(tmp_path) == 1
    assert "Connection refused" in _error(capsys)
    assert list((tmp_path / "set").iterdir()) == []


@pytest.mark.parametrize("url", ["nowhere", "file:///etc/hostname", "http://[bad", "http://127.0.0.1:port/"])
def test_an_address_that_is_none_is_one_sentence(
    server: Behaviour, tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    assert _fetch(tmp_path, "--url", url) == 1
    assert f"cannot fetch sample from {url}: " in _error(capsys)
    assert server.asked == []


def test_url_replaces_the_address_and_keeps_the_checksum(server: Behaviour, tmp_path: Path) -> None:
    mirror = command.DATA_FILES["sample"].url
    command.DATA_FILES["sample"] = replace(command.DATA_FILES["sample"], url="http://127.0.0.1:1/")
    assert _fetch(tmp_path, "--url", mirror) == 0
    server.content = CONTENT[::-1]
    assert _fetch(tmp_path / "other", "--url", mirror) == 1


def test_a_present_file_is_not_fetched_again(
    server: Behaviour, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(_target(tmp_path), CONTENT)
    assert _fetch(tmp_path) == 0
    assert "already there" in capsys.readouterr().out
    assert server.asked == []


def test_another_file_at_the_target_is_replaced_only_by_force(
    server: Behaviour, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(_target(tmp_path), b"mine")
    assert _fetch(tmp_path) == 1
    assert "--force" in _error(capsys)
    assert _target(tmp_path).read_bytes() == b"mine"
    assert server.asked == []
    assert _fetch(tmp_path, "--force") == 0
    assert _target(tmp_path).read_bytes() == CONTENT


def test_a_failed_force_keeps_what_was_there(server: Behaviour, tmp_path: Path) -> None:
    _write(_target(tmp_path), b"mine")
    server.statuses = [404]
    assert _fetch(tmp_path, "--force") == 1
    assert _target(tmp_path).read_bytes() == b"mine"


def test_a_data_folder_that_cannot_be_made_is_one_sentence(
    server: Behaviour, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert _fetch(tmp_path / "file") == 1
    assert "it cannot be stored at" in _error(capsys)


def test_a_full_disk_is_one_sentence_and_no_file(
    server: Behaviour, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert _fetch(tmp_path) == 1
    assert "No space left on device" in _error(capsys)
    assert not _target(tmp_path).exists()


def test_an_interrupt_keeps_the_part_and_the_same_command_resumes(
    server: Behaviour, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    server.drop_after = [HALF]
    with monkeypatch.context() as patch:
        patch.setattr("time.sleep", interrupt)
        assert _fetch(tmp_path) == 130
    assert "the same command resumes" in _error(capsys)
    assert not _target(tmp_path).exists()
    assert _fetch(tmp_path) == 0
    assert server.asked == [None, f"bytes={HALF}-"]
    assert _target(tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["sample", "smaple"], "unknown name smaple: the known names are sample"),
        (["--url", "http://127.0.0.1/"], "--url needs exactly one NAME"),
    ],
)
def test_wrong_usage_is_code_2_and_fetches_nothing(
    server: Behaviour, tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*argv, f"data_dir={tmp_path}"])
    assert caught.value.code == 2
    assert reason in capsys.readouterr().err
    assert server.asked == []


def test_the_list_tells_what_is_there(server: Behaviour, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def state() -> str:
        assert main([f"data_dir={tmp_path}"]) == 0
        out = capsys.readouterr().out
        assert "sample" in out and "400.0 kB" in out
        return next(word for word in ("missing", "partial", "different", "present") if word in out)

    assert state() == "missing"
    _write(_part(tmp_path), CONTENT[:HALF])
    assert state() == "partial"
    _write(_target(tmp_path), CONTENT[:HALF])
    assert state() == "different"
    _write(_target(tmp_path), CONTENT)
    assert state() == "present"


def test_without_a_name_the_shipped_entries_are_listed(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "runners.fetch", f"data_dir={tmp_path}"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in ("landmine", "har", "emnist")) and "missing" in done.stdout


@pytest.mark.parametrize("file", command.DATA_FILES.values(), ids=lambda file: file.name)
def test_shipped_entries_are_well_formed(file: DataFile, tmp_path: Path) -> None:
    assert command.DATA_FILES[file.name] is file
    assert file.url.startswith("https://")
    assert len(bytes.fromhex(file.sha256)) == 32
    assert (tmp_path / file.path).resolve().is_relative_to(tmp_path.resolve())
    assert file.bytes is None or file.bytes > 0
