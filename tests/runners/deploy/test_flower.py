"""A SuperLink and five sites as processes, with TLS and registered keys; processes are killed, one site stays away."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from dpfbo.formats.files import locked_file
from dpfbo.formats.journal import StateError
from tests.runners.deploy.deployments import call, charged, configurations, simulated, simulated_sum
from tests.runners.deploy.processes import QUICK, ROOT, free_port, quick_world, world

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(find_spec("flwr") is None, reason="flwr is not installed here: make flower-test installs it"),
]
N, AWAY, KILLED = 5, 4, 1


def awaited(project):
    path = project.server / "state.json"
    return json.loads(path.read_text())["awaited"] if path.exists() else None


@pytest.mark.parametrize("options", [(), ("--trust", "nobody", "--max-dropouts", 1)], ids=["trusted", "nobody"])
def test_a_study_over_flower_is_the_simulation(tmp_path, options):
    """A site and the server are killed and started again; a site never comes."""
    project, sites = quick_world(tmp_path, N, *options)
    (sites[KILLED] / "hold").touch()
    server_command = ["server", project.folder, *QUICK, "--step-timeout", 8]
    if not options:
        server_command += ["--min-sites", N - 1]
    with world(tmp_path) as w:
        server = w.start("server", *server_command)
        running = {n: w.start(f"site{n}", "site", sites[n]) for n in range(N) if n != AWAY}
        w.wait("all but two have answered", lambda: awaited(project) == [KILLED, AWAY])
        w.wait("the site evaluates", lambda: (sites[KILLED] / "evaluating").exists())
        w.wait("it is connected", lambda: "connected to" in w.output(f"site{KILLED}"))
        w.kill(running[KILLED])
        w.kill(server)
        w.wait("no process of the server is left", lambda: len(w.processes()) == N - 2)
        (sites[KILLED] / "hold").unlink()
        server = w.start("server", *server_command)
        running[KILLED] = w.start(f"site{KILLED}", "site", sites[KILLED])
        for name, process in {"server": server, **running}.items():
            w.wait(f"the end of {name}", lambda process=process: process.poll() is not None)
            assert process.returncode == 0, w.output(f"site{name}" if name != "server" else name)
        w.wait("no process is left", lambda: w.processes() == [])
    present = [n for n in range(N) if n != AWAY]
    found, expected = (simulated_sum if options else simulated)(project.shared.study, present)
    assert [configurations(sites[n]) for n in present] == [found[n] for n in present]
    assert charged(project) == expected and len(expected) == 1
    sent = {(sites[n] / "agent" / "broadcast-00000.bin").read_bytes() for n in present}
    assert sent == {(project.server / "broadcast-00000.bin").read_bytes()}
    for n in present:
        result = call("result", sites[n])
        assert result["configuration"] in found[n] and result["epsilon"] == pytest.approx(2.0, abs=0.01)
        assert [entry["round"] for entry in result["ledger"]] == [0]
    assert call("status", project.folder)["finished"] is True


def test_the_tutorial(tmp_path):
    """The commands of the page, with a free port."""
    text = (ROOT / "docs" / "tutorials" / "five-sites.md").read_text()
    (tmp_path / "space.yaml").write_text(block_after(text, "```yaml"))
    commands = re.findall(r"```text\n(.*?)```", text, re.S)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    bash = partial(subprocess.run, cwd=tmp_path, check=True, shell=True, env={**os.environ, "PATH": path})
    init, keys = (next(c for c in commands if word in c) for word in ("deploy init", "site-key"))
    bash(init.replace("--host localhost", f"--host localhost --port {free_port()}"))
    (tmp_path / "project" / "for_sites" / "objective.py").write_text(block_after(text, "```python"))
    bash(keys, executable="/bin/bash")
    with world(tmp_path) as w:
        running = [w.start("server", "server", "project", "--step-timeout", 120)]
        running += [w.start(f"site{n}", "site", f"site{n}") for n in range(N)]
        w.wait("the end", lambda: all(process.poll() == 0 for process in running))
    for n in range(N):
        result = call("result", tmp_path / f"site{n}")
        assert result["value"] > 0.85
        assert len(result["ledger"]) == 1


def block_after(text, fence):
    return text.split(fence, 1)[1].split("\n", 1)[1].split("```", 1)[0]


def test_strangers_get_nothing(tmp_path):
    """An unregistered key, a server with another certificate, and the paths that are not for SuperNodes."""
    import httpx

    project, sites = quick_world(tmp_path, 2, roster=[0])
    stranger = sites[1] / "roster.json"  # it believes to be in the roster
    entries = json.loads(stranger.read_text())
    keys = json.loads((sites[1] / "public.json").read_text())
    stranger.write_text(json.dumps({"sites": [*entries["sites"], {"agent": 1, "name": "", **keys}]}))
    authority, address = str(project.shared.authority), project.shared.address
    with world(tmp_path) as w:
        server = w.start("server", "server", project.folder, *QUICK)
        w.wait("the server asks", lambda: awaited(project) == [0, 1])
        for path in ("/v1/control/list-runs", "/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/health"):
            assert httpx.post(f"https://{address}{path}", verify=authority).status_code == 404
        assert httpx.post(f"https://{address}/v1/fleet/pull-messages", verify=authority).status_code in (400, 401, 415)
        with pytest.raises(httpx.TransportError):
            httpx.post(f"http://{address}/v1/fleet/pull-messages")
        with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
            httpx.post(f"https://{address}/v1/fleet/pull-messages")
        call("init", tmp_path / "else", "--space", tmp_path / "space.yaml", "--agents", 2, "--rng", "seeded")
        shutil.copy(tmp_path / "else" / "for_sites" / "ca.crt", sites[0] / "ca.crt")
        w.start("stranger", "site", sites[1])
        w.start("misled", "site", sites[0])
        told = "the server does not know this site's key"
        w.wait("the stranger is refused", lambda: told in w.output("stranger"))
        w.wait("the server is refused", lambda: "certificate is not the operator's" in w.output("misled"))
        assert awaited(project) == [0, 1]
        server.send_signal(signal.SIGTERM)
        w.wait("the server ends", lambda: server.poll() is not None)
        assert server.returncode == 1 and "error: stopped; the same command continues" in w.output("server")


def test_no_process_outlives_tests_that_are_killed(tmp_path):
    project, _ = quick_world(tmp_path, 2)
    code = f"""
import time
from pathlib import Path
from tests.runners.deploy.processes import World
w = World(Path({str(tmp_path)!r}))
w.start("server", "server", {str(project.folder)!r})
print(w.mark, flush=True)
time.sleep(600)
"""
    with world(tmp_path) as w, subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as p:
        w.mark = p.stdout.readline().strip()
        w.wait("the server asks", lambda: awaited(project) == [0, 1])
        assert len(w.processes()) >= 3
        p.kill()
        w.wait("all processes end", lambda: w.processes() == [])


def test_a_project_has_one_server(tmp_path):
    project, _ = quick_world(tmp_path, 2)
    project.server.mkdir()
    with locked_file(project.running, 0.0), world(tmp_path) as w:
        server = w.start("second", "server", project.folder)
        w.wait("the server ends", lambda: server.poll() is not None)
        assert server.returncode == 1 and "error: another server runs the project in" in w.output("second")


def test_a_site_cannot_answer_for_another():
    """The guard of SuperLink refuses a reply whose sender is not the node that signed the call."""
    from types import SimpleNamespace as Made

    from flwr.superlink.servicer.fleet import fleet_handlers

    from runners.deploy.flower import superlink

    superlink._guard_handlers()
    forged = Made(node=Made(node_id=1), messages_list=[Made(metadata=Made(src_node_id=2))])
    with pytest.raises(PermissionError, match="a SuperNode answers for another one"):
        fleet_handlers.push_messages(request=forged, state=None)


def test_a_damaged_folder_is_told_in_a_sentence(tmp_path, monkeypatch):
    from runners.deploy.exchange import Pace
    from runners.deploy.flower import server_app

    project, _ = quick_world(tmp_path, 2)
    monkeypatch.setenv(server_app.SETTINGS, server_app.ServerSettings(str(project.folder), 1, Pace()).encoded())
    project.server.mkdir()
    (project.server / "coordinator.jsonl").write_text("damaged\n")
    monkeypatch.setattr(server_app, "_end_with_the_server", lambda project: None)  # it would end the tests
    with pytest.raises(StateError):
        server_app.main(None, None)
    assert "coordinator.jsonl line 1 cannot be read: restore the file" in project.failure.read_text()


class Grid:
    """Replies by request; an error is raised where a bulk holds it, as Flower does for objects that do not fit."""

    def __init__(self, replies):
        self.replies = replies

    def pull_messages(self, names):
        for name in names:
            if isinstance(self.replies[name], Exception):
                raise self.replies[name]
        return [self.replies[name] for name in names]


def test_replies_of_strangers_and_unreadable_ones_are_left_out(tmp_path):
    from types import SimpleNamespace as Made

    from flwr.app import ConfigRecord, RecordDict

    from runners.deploy.flower.server_app import FlowerPost

    def reply(name, node, content, failed=False):
        metadata = Made(src_node_id=node, reply_to_message_id=name)
        return Made(metadata=metadata, content=content, has_error=lambda: failed)

    good = RecordDict({"dpfbo": ConfigRecord({"data": b"yes"})})
    text = RecordDict({"dpfbo": ConfigRecord({"data": "yes"})})
    grid = Grid({
        "a": reply("a", 10, good), "b": reply("b", 99, good), "c": ValueError("objects"), "d": reply("d", 11, text),
        "e": reply("e", 11, RecordDict()), "f": reply("f", 11, None, failed=True),
    })  # fmt: skip
    post = FlowerPost(grid, None, 60.0)
    post._sites = {10: 0, 11: 1}
    assert post.collect("abcdef") == [("a", 0, b"yes"), ("d", 1, None), ("e", 1, None), ("f", 1, None)]
    assert post.collect([]) == []


def test_what_a_site_says_when_it_cannot_connect():
    import httpx

    from runners.deploy.flower.supernode import _sentence

    def refused(path, status):
        request = httpx.Request("POST", f"https://here{path}")
        return _sentence(httpx.HTTPStatusError("", request=request, response=httpx.Response(status, request=request)))

    assert "its clock may be" in refused("/v1/fleet/activate-node", 401)
    assert "does not know this site's key" in refused("/v1/fleet/activate-node", 403)
    assert refused("/v1/fleet/pull-messages", 401) == "the server was restarted"
    assert refused("/v1/fleet/pull-messages", 500) == "the server answers 500"
    assert _sentence(httpx.ReadTimeout("")) == "ReadTimeout"


def test_only_the_fleet_api_and_short_requests_pass():
    import asyncio

    from runners.deploy.flower.superlink import fleet_only

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    def status(path, length=b"10"):
        sent = []

        async def send(event):
            sent.append(event)

        scope = {"type": "http", "path": path, "headers": [] if length is None else [(b"content-length", length)]}
        asyncio.run(fleet_only(app)(scope, None, send))
        return sent[0]["status"]

    assert status("/v1/fleet/pull-messages") == 200
    assert [status("/v1/fleet/push-object", n) for n in (None, b"x", b"-1", b"%d" % 2**27)] == [413] * 4
    assert [status(p) for p in ("/", "/v1/control/start-run", "/v1/fleet", "/docs", "/health")] == [404] * 5
