"""The board's server answers on loopback, to its own page alone, and ends with Ctrl-C."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import pytest

from runners.board import command, page
from runners.board.board_data import BoardData
from runners.board.experiment_folder import ExperimentFolder
from runners.board.server import BoardServer, is_loopback
from tests.helpers.board_folders import BEST, finish, plan

pytest.importorskip("plotly", reason="the board needs plotly")


@pytest.fixture
def results(tmp_path):
    plan(tmp_path, {"aaa": "</script><img src=x onerror=alert(1)>"}, [0, 1])
    finish(tmp_path, "aaa", 0, [0.8, 0.4, 0.2])
    return tmp_path


@pytest.fixture
def serve():
    """A function that serves a board until the test ends."""
    servers = []

    def start(folder, private=False):
        server = BoardServer(BoardData([folder], private), "127.0.0.1", 0, 1.0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def get(server, path, method="GET", **headers):
    """(status, headers, content) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), content


def test_page_and_content(results, serve):
    server = serve(results / "mine")
    status, headers, text = get(server, "/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in text
    for part in re.findall(r'(?:src|href)="([^"]*)"', text):
        assert part == "data:," or get(server, f"/{part}")[0] == 200
    status, headers, text = get(server, "/content.json")
    assert status == 200
    assert json.loads(text)["experiments"][0]["counts"] == {"done": 1, "waiting": 1}
    assert headers["Cache-Control"] == "no-store", "it may be private"
    for path in ("/../etc/passwd", "/nothing", "/board.py", "/best.json?experiment=x&setting=aaa"):
        assert get(server, path)[0] == 404
    assert get(server, "/content.json?" + "&".join(["draw=x"] * 1000))[0] == 400
    assert get(server, "/", Host="[")[0] == 400
    assert get(server, "/", "POST")[0] == 501


def test_curves_by_choice_and_best_configurations(results, serve):
    server, key = serve(results / "mine"), ExperimentFolder(results / "mine").key

    def drawn(query):
        settings = json.loads(get(server, f"/content.json?{query}")[2])["experiments"][0]["settings"]
        return [setting["curve"] is not None for setting in settings]

    assert (drawn(""), drawn("none=1"), drawn(f"draw={key}%2Faaa"), drawn("draw=x%2Faaa")) == (
        [True],
        [False],
        [True],
        [False],
    )
    best = json.loads(get(server, f"/best.json?experiment={key}&setting=aaa")[2])
    assert best["columns"] == ["seed", *BEST[0]]
    assert best["rows"] == [{"seed": 0, **BEST[0]}]


def test_a_page_of_another_site_gets_nothing(results, serve):
    server = serve(results / "mine")
    for host in ("evil.example", "evil.example:80", "", "127.0.0.1.evil.example"):
        assert get(server, "/content.json", Host=host)[0] == 403
    assert get(server, "/content.json", Host="localhost:1")[0] == 200


def test_private_records_need_the_secret_of_the_address(results, serve):
    finish(results, "aaa", 1, [0.8, 0.4, 0.2], real=True)
    server = serve(results / "mine", private=True)
    query = urlsplit(server.url).query
    for path in ("/", "/content.json", "/best.json?experiment=x", "/content.json?token=x"):
        assert get(server, path)[0] == 403
    assert "mean" in json.loads(get(server, f"/content.json?{query}")[2])["experiments"][0]["settings"][0]["curve"]
    public = serve(results / "mine")
    assert "mean" not in json.loads(get(public, "/content.json")[2])["experiments"][0]["settings"][0]["curve"]
    assert urlsplit(public.url).query == ""


def test_loopback():
    assert [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9")] == [True] * 4
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "myhost", "", "localhost.evil"))


def test_serves_until_ctrl_c(results):
    arguments = [sys.executable, "-m", "runners.board", str(results / "mine"), "--port", "0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().split()[0]
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        connection.request("GET", "/content.json")
        assert json.loads(connection.getresponse().read())["experiments"][0]["name"] == "mine"
        connection.close()
        process.send_signal(signal.SIGINT)
        assert (process.wait(30), process.stderr.read()) == (0, "")


def test_a_file_has_everything_in_it(results, tmp_path, capsys):
    file = tmp_path / "page.html"
    assert command.main([str(results / "mine"), "--file", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    text = file.read_text()
    assert not re.findall(r"<(?:script|link|img|iframe|object)\b[^>]*\b(?:src|href)=[\"'](?!data:)", text)
    assert "script-src 'unsafe-inline'" in text
    assert "default-src 'none'" in text, "nothing else can be loaded"
    assert "<img src=x" not in text, "names are data, not HTML"
    data = json.loads(re.search(r'id="content">(.*?)</script>', text)[1])
    assert data["experiments"][0]["settings"][0]["label"] == "</script><img src=x onerror=alert(1)>"
    assert [best["rows"][0]["value"] for best in data["best"].values()] == [0.5]
    assert file.stat().st_mode & 0o777 == 0o644
    assert command.main([str(results / "mine"), "--file", str(file), "--private"]) == 0
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--port", "70000"], 2, "--port must be 0..65535, got 70000"),
        (["--every", "0"], 2, "--every must be"),
        (["--every", "nan"], 2, "--every must be"),
        (["--file", "page.png"], 2, "--file must be a file whose name ends in .html, got page.png"),
        (["--host", "0.0.0.0"], 2, "--host 0.0.0.0 can be reached from other machines: give --expose"),
        (["--prot", "1"], 2, "did you mean --port?"),
        (["nothing", "--file", "page.html"], 1, "there is no folder nothing"),
        (["file.txt"], 1, "FOLDER must be a folder of an experiment, got the file file.txt"),
        (["empty", "--file", "page.html"], 1, "there is no trial in empty"),
        (["full", "--file", "no/page.html"], 1, "there is no folder"),
    ],
)
def test_mistakes_are_one_sentence(arguments, code, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").touch()
    finish(tmp_path, "aaa", 0, [0.8, 0.4, 0.2])
    (tmp_path / "mine").rename("full")
    try:
        got = command.main(arguments)
    except SystemExit as stop:
        got = stop.code
    error = capsys.readouterr().err
    assert (got, words in error, error.count("\n")) == (code, True, 1)
    assert not list(tmp_path.glob("*.html"))


def test_a_port_that_is_taken(results, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert command.main([str(results / "mine"), "--port", str(other.getsockname()[1])]) == 1
    assert "--port 0 takes a free one" in capsys.readouterr().err


def test_exposing_it_says_what_that_means(results, capsys, monkeypatch):
    monkeypatch.setattr(BoardServer, "serve_forever", lambda self: None)
    assert command.main([str(results / "mine"), "--port", "0", "--host", "0.0.0.0", "--expose"]) == 0
    printed = capsys.readouterr()
    assert "whoever reaches 0.0.0.0 can read names, settings, progress" in printed.err
    assert printed.out.startswith("http://0.0.0.0:")


def test_without_plotly_it_is_one_sentence(results, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    page.plotly_script.cache_clear()
    with pytest.raises(page.NoBoard):
        page.plotly_script()
    assert command.main([str(results / "mine")]) == 1
    assert capsys.readouterr().err == "error: the board needs plotly: pip install 'dpfbo[board]'\n"


def test_starts_without_ray_torch_and_plotly():
    code = "import sys, runners.board.command; print({'ray', 'torch', 'hydra', 'plotly'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
