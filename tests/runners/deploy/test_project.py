"""Init, keys and roster: what they write, and one sentence for every mistake."""

import contextlib
import json
import re
import socket
import ssl
import stat
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from dpfbo.formats.journal import StateError
from runners.deploy import command, project
from runners.deploy.keys import PublicKeys, read_identity, read_supernode
from runners.deploy.project import Project
from runners.deploy.roster import SiteRoster
from runners.deploy.site_folder import read_public
from tests.helpers.studies import SPACE
from tests.runners.deploy.deployments import call, deployed

INIT = ["--agents", 2]


def init(folder, *options, code=0):
    (folder / "space.yaml").write_text(SPACE)
    return call("init", folder / "project", "--space", folder / "space.yaml", *INIT, *options, code=code)


def test_init_writes_a_project_that_says_what_it_promises(tmp_path):
    answer = init(tmp_path, "--host", "bo.example.org", "--host", "10.0.0.7", "--port", 8443)
    assert answer["address"] == "bo.example.org:8443" and answer["privacy"].startswith("epsilon 1.00 at delta 0.001")
    made = Project.read(tmp_path / "project")
    assert made.shared.study.digest == answer["study"] and made.shared.study.rng == "os"
    assert {p.name for p in (made.folder / "for_sites").iterdir()} == {
        "study.json", "objective.py", "roster.json", "project.json", "ca.crt", "README.md",
    }  # fmt: skip
    assert {p.name: stat.S_IMODE(p.stat().st_mode) for p in (made.folder / "tls").iterdir()} == {
        "server.crt": 0o644, "server.key": 0o600,
    }  # fmt: skip
    for readme in (made.folder / "README.md", made.folder / "for_sites" / "README.md"):
        assert re.findall(r"^(\d+)\. ", readme.read_text(), re.M) == [str(k) for k in range(1, 11)]
    compile((made.folder / "for_sites" / "objective.py").read_text(), "objective.py", "exec")
    assert "rate" in (made.folder / "for_sites" / "objective.py").read_text()


def test_nothing_of_the_operator_is_in_the_flower_app(tmp_path):
    init(tmp_path)
    assert [p.name for p in (tmp_path / "project" / "app").iterdir()] == ["pyproject.toml"]


def test_a_project_appears_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(project, "make_certificates", lambda folder, hosts: 1 / 0)
    (tmp_path / "space.yaml").write_text(SPACE)
    with pytest.raises(ZeroDivisionError):
        init(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["space.yaml"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_certificate_is_of_the_hosts_and_of_no_other(tmp_path, host):
    init(tmp_path, "--host", "localhost", "--host", "127.0.0.1")
    made = Project.read(tmp_path / "project")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*made.certificate)
    trusted = ssl.create_default_context(cafile=made.shared.authority)
    trusted.verify_flags |= ssl.VERIFY_X509_STRICT

    def answer(listening):
        for _ in range(2):
            with contextlib.suppress(ssl.SSLError):
                served.wrap_socket(listening.accept()[0], server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer, args=[listening])
        thread.start()
        address = listening.getsockname()
        with socket.create_connection(address) as sock, trusted.wrap_socket(sock, server_hostname=host) as talk:
            assert talk.version() == "TLSv1.3"
        with socket.create_connection(address) as sock, pytest.raises(ssl.SSLCertVerificationError):
            trusted.wrap_socket(sock, server_hostname="else.example.org")
        thread.join()


def test_a_certificate_of_the_operators_own(tmp_path):
    init(tmp_path)
    tls = tmp_path / "project" / "tls"
    own = ["--certificate", tls / "server.crt", "--certificate-key", tls / "server.key"]
    (tmp_path / "other").mkdir()
    call("init", tmp_path / "other" / "project", "--space", tmp_path / "space.yaml", *INIT, *own)
    made = Project.read(tmp_path / "other" / "project")
    assert made.shared.authority is None and not (made.shared.folder / "ca.crt").exists()
    assert made.certificate[1].read_bytes() == (tls / "server.key").read_bytes()
    assert stat.S_IMODE(made.certificate[1].stat().st_mode) == 0o600


def test_keys_are_the_owners_alone_and_are_made_once(tmp_path):
    told = call("site-key", tmp_path / "site")
    assert re.fullmatch(r"([0-9a-f]{4} ){7}[0-9a-f]{4}", told["fingerprint"])
    modes = {
        name: stat.S_IMODE((tmp_path / "site" / name).stat().st_mode) for name in ("identity.key", "supernode.key")
    }
    assert modes == {"identity.key": 0o600, "supernode.key": 0o600}
    assert stat.S_IMODE((tmp_path / "site").stat().st_mode) == 0o700
    assert read_identity(tmp_path / "site").public_key().public_bytes_raw().hex() == told["identity"]
    assert read_supernode(tmp_path / "site").curve.name == "secp384r1"
    assert call("status", tmp_path / "site")["fingerprint"] == told["fingerprint"]
    before = (tmp_path / "site" / "identity.key").read_bytes()
    call("site-key", tmp_path / "site", code=1)
    assert (tmp_path / "site" / "identity.key").read_bytes() == before


def test_a_killed_site_key_starts_anew(tmp_path):
    call("site-key", tmp_path / "site")
    (tmp_path / "site" / "public.json").unlink()
    told = call("site-key", tmp_path / "site")
    assert read_identity(tmp_path / "site").public_key().public_bytes_raw().hex() == told["identity"]


def test_private_keys_that_others_may_read_are_refused(tmp_path):
    call("site-key", tmp_path / "site")
    (tmp_path / "site" / "supernode.key").chmod(0o640)
    with pytest.raises(StateError, match=r"must be readable by its owner alone \(mode 600\), got mode 640"):
        read_supernode(tmp_path / "site")
    (tmp_path / "site" / "identity.key").write_text("nothing")
    with pytest.raises(StateError, match="holds no private key: restore the file"):
        read_identity(tmp_path / "site")


def test_the_roster_has_each_number_and_each_key_once(tmp_path, capsys):
    made, sites = deployed(tmp_path, 3, roster=[0])
    add = ["roster", "add", made.folder, "--keys"]
    call(*add, sites[1] / "public.json", "--agent", 0, code=1)
    assert "agent 0 is in the roster already" in capsys.readouterr().err
    call(*add, sites[0] / "public.json", "--agent", 1, code=1)
    assert "agents 0 and 1 have the same key: each needs its own" in capsys.readouterr().err
    call(*add, sites[1] / "public.json", "--agent", 3, code=1)
    assert "agent must be a number from 0 to 2, got 3" in capsys.readouterr().err
    call(*add, sites[1] / "public.json", "--agent", 1, "--name", "second\nclinic", code=1)
    assert "name must be a line" in capsys.readouterr().err
    call(*add, sites[1] / "public.json", "--agent", 1, "--name", "second clinic")
    shown = call("roster", "show", made.folder)
    assert [(s["agent"], s["name"]) for s in shown["sites"]] == [(0, ""), (1, "second clinic")]
    assert shown["missing"] == [2]
    assert shown["sites"][1]["fingerprint"] == read_public(sites[1]).fingerprint


def test_keys_of_two_sites_cannot_be_mixed(tmp_path):
    """The identity signs the SuperNode's key: a public.json that was changed on its way is refused."""
    made, sites = deployed(tmp_path, 2, roster=[])
    one, two = (json.loads((site / "public.json").read_text()) for site in sites)
    for mixed in (
        {**one, "supernode": two["supernode"]},
        {**one, "proof": two["proof"]},
        {**one, "identity": "ab" * 32},
    ):
        (tmp_path / "mixed.json").write_text(json.dumps(mixed))
        call("roster", "add", made.folder, "--agent", 0, "--keys", tmp_path / "mixed.json", code=1)
    for broken in ({}, [], {"identity": 1, "supernode": 2, "proof": 3}, {**one, "more": 1}):
        with pytest.raises(StateError):
            PublicKeys.of(broken, tmp_path / "x.json")


@pytest.mark.parametrize("content", ["", "[]", '{"sites": 1}', '{"sites": [{"agent": 0}]}', "{" * 5000])
def test_a_damaged_roster_is_refused(tmp_path, content):
    (tmp_path / "roster.json").write_text(content)
    with pytest.raises(StateError, match=r"roster\.json"):
        SiteRoster.read(tmp_path / "roster.json", 3)


def test_a_roster_that_names_an_agent_twice_is_refused(tmp_path):
    made, _ = deployed(tmp_path, 2)
    path = made.shared.folder / "roster.json"
    entries = json.loads(path.read_text())["sites"]
    path.write_text(json.dumps({"sites": [entries[0], {**entries[1], "agent": 0}]}))
    with pytest.raises(StateError, match="must name each agent once"):
        _ = made.shared.roster


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--algorithm", "local"], "algorithm must be one whose agents send messages, got 'local'"),
        (["--host", "no host"], "host must be the name or the address of a machine, got 'no host'"),
        (["--port", 0], "port must be an integer of at least 1, got 0"),
        (["--epsilon", -1], "epsilon must be a finite"),
        (["--certificate", "absent.pem"], "certificate must come with certificate-key"),
        (["--certificate", "absent.pem", "--certificate-key", "absent.pem"], "absent.pem"),
    ],
)
def test_mistakes_of_init_are_one_sentence(tmp_path, capsys, options, sentence):
    init(tmp_path, *options, code=1)
    error = capsys.readouterr().err
    assert sentence in error and error.startswith("error: ") and error.count("\n") == 1
    assert not (tmp_path / "project").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["status", "nowhere"], "nowhere is not a site's folder: python -m runners.deploy site-key makes one"),
        (["site", "nowhere"], "nowhere is not a site's folder"),
        (["server", "nowhere"], "nowhere is not a project: python -m runners.deploy init makes one"),
        (["roster", "show", "site0"], "site0 is not a project"),
        (
            ["init", "project", "--space", "space.yaml", "--agents", "2"],
            "project exists already: a study never changes",
        ),
        (["roster", "add", "project", "--agent", "1", "--keys", "space.yaml"], "space.yaml is no"),
        (["site", "site1"], "roster.json lacks this site"),
        (["site", "site0"], "fill in evaluate() in objective.py"),
        (["server", "project", "--min-sites", "3"], "min_sites must be at most 2, got 3"),
        (["server", "project", "--step-timeout", "0"], "step_timeout must be a finite number above 0"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, monkeypatch, capsys, arguments, sentence):
    deployed(tmp_path, 2, "--port", 1, roster=[0])
    monkeypatch.chdir(tmp_path)
    if arguments == ["site", "site0"] and find_spec("flwr") is None:
        sentence = "dpfbo deploy site needs flwr: pip install 'dpfbo[flower]'"
    capsys.readouterr()
    assert command.main(arguments) == 1
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1 and sentence in error[0]


def test_damaged_files_of_a_project_are_named(tmp_path):
    made, _ = deployed(tmp_path, 2)
    path = made.shared.folder / "project.json"
    good = json.loads(path.read_text())
    for bad in ({}, {**good, "port": "1"}, {**good, "minimize": 1}, [good]):
        path.write_text(json.dumps(bad))
        with pytest.raises(StateError, match=r"project\.json must have .*restore the file"):
            Project.read(made.folder)


def test_the_undocumented_parts_of_flower_fit_the_pinned_version():
    root = Path(project.__file__).parents[2]
    pinned = re.search(r"^flwr==(\S+)$", (root / "constraints-flower.txt").read_text(), re.M)[1]
    for module in ("superlink", "supernode"):
        assert f"Written for flwr {pinned}." in (root / "runners" / "deploy" / "flower" / f"{module}.py").read_text()
