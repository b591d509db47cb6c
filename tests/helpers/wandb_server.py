"""A stand-in for the W&B server on loopback: it keeps what clients send, and answers as the server would.

It knows the operations of W&B's service process that runs, their resumption, their files and sweeps need. History lines
come with an offset, as to the server: a client that writes from an earlier offset replaces what was there.
"""

import gzip
import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

ENTITY = "team"


@dataclass
class StoredRun:
    """One run as the server has it. facts: of its upserts. lines: by file, then number. posts: as they were sent."""

    name: str
    project: str
    facts: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, dict[int, str]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    posts: list[dict[str, Any]] = field(default_factory=list)
    upserts: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None

    def rows(self, file: str = "wandb-history.jsonl") -> list[dict[str, Any]]:
        return [json.loads(line) for _, line in sorted(self.lines.get(file, {}).items())]

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rows in the order of their lines, without W&B's own entries except the step."""
        return [{k: v for k, v in row.items() if k == "_step" or not k.startswith("_")} for row in self.rows()]

    @property
    def summary(self) -> dict[str, Any]:
        found = self.rows("wandb-summary.json")
        return found[-1] if found else {}

    @property
    def config(self) -> dict[str, Any]:
        return {key: entry["value"] for key, entry in json.loads(self.facts.get("config") or "{}").items()}


class WandbServer(ThreadingHTTPServer):
    """Runs by id in `runs`, workspaces and reports in `views`; `unknown` names operations it had no answer for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.runs: dict[str, StoredRun] = {}
        self.artifacts: list[dict[str, Any]] = []
        self.views: list[dict[str, Any]] = []
        self.sent_files: dict[str, bytes] = {}  # of artifacts, by id and name
        self.alerts: list[dict[str, Any]] = []
        self.sweeps: list[dict[str, Any]] = []  # configurations; the runs of the last one are handed out
        self.planned: list[dict[str, Any]] = []  # parameters of the runs of a grid, in their order
        self.operations: list[str] = []
        self.unknown: list[str] = []
        self.held = threading.RLock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that closed its connection, or was killed."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def run_named(self, id: str, project: str) -> StoredRun:
        return self.runs.setdefault(id, StoredRun(id, project))

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        """The data of one GraphQL operation."""
        found = re.search(r"\b(?:query|mutation)\s+(\w+)", query)
        name = found[1] if found else query[:60]
        self.operations.append(name)
        known = getattr(self, f"_{name}", None)
        if known is None:
            self.unknown.append(f"{name}: {query} {given}")
            return {}
        return known(given)

    def _ServerFeaturesQuery(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"serverInfo": {"features": []}}

    def _Viewer(self, given: dict[str, Any]) -> dict[str, Any]:
        teams: dict[str, Any] = {"edges": []}
        return {"viewer": {"id": "u", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}", "teams": teams}}

    def _GetDefaultEntity(self, given: dict[str, Any]) -> dict[str, Any]:
        return self._Viewer(given)

    def _OrganizationCoreWeaveOrganizationID(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"entity": {"organization": {"coreWeaveOrganizationId": None}}}

    def _UpsertView2(self, given: dict[str, Any]) -> dict[str, Any]:
        self.views.append(given)
        return {"upsertView": {"view": {"id": "v", "name": given["name"]}, "inserted": True}}

    def _upsertView(self, given: dict[str, Any]) -> dict[str, Any]:
        self.views.append(given)
        project = {"id": "p", "name": given["projectName"], "entityName": given["entityName"]}
        view = {"id": "v", "name": given["name"], "displayName": given["displayName"], "description": "",
                "type": given["type"], "project": project, "spec": given["spec"], "updatedAt": None}  # fmt: skip
        return {"upsertView": {"view": view, "inserted": True}}

    def _ProjectInternalId(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"project": {"id": "p", "internalId": "1"}}

    def _CreateProject(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"result": {"project": None, "model": None, "inserted": True}}

    def _GetProjects(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"models": {"edges": [], "pageInfo": {"endCursor": None, "hasNextPage": False}}}

    def _NotifyScriptableRunAlert(self, given: dict[str, Any]) -> dict[str, Any]:
        self.alerts.append(given)
        return {"notifyScriptableRunAlert": {"success": True}}

    def _UpsertSweep(self, given: dict[str, Any]) -> dict[str, Any]:
        config = yaml.safe_load(given["config"])
        self.sweeps.append(config)
        values = {key: parameter["values"] for key, parameter in config["parameters"].items()}
        self.planned = [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]
        project = {"id": "p", "name": given["projectName"], "entity": {"id": "e", "name": ENTITY}}
        return {"upsertSweep": {"sweep": {"name": "sweep1", "project": project}, "configValidationWarnings": []}}

    def _SweepWithRuns(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"project": {"sweep": {"id": "s", "config": yaml.safe_dump(self.sweeps[-1]), "runs": {"edges": []}}}}

    def _CreateAgent(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"createAgent": {"agent": {"id": "a"}}}

    def _Heartbeat(self, given: dict[str, Any]) -> dict[str, Any]:
        commands = []
        if self.planned and not json.loads(given["runState"]):  # one run at a time
            args = {key: {"value": value} for key, value in self.planned.pop(0).items()}
            id = f"agent{len(self.planned)}"
            commands = [{"type": "run", "run_id": id, "program": self.sweeps[-1]["program"], "args": args}]
        return {"agentHeartbeat": {"agent": {"id": "a"}, "commands": json.dumps(commands)}}

    def _RunResumeStatus(self, given: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(given["name"])
        bucket = None
        if run is not None and run.upserts:
            history = run.lines.get("wandb-history.jsonl", {})
            last = [history[max(history)]] if history else []
            bucket = {
                "id": run.name, "name": run.name, "displayName": run.facts.get("displayName"), "notes": "",
                "summaryMetrics": json.dumps(run.summary), "logLineCount": 0, "historyLineCount": len(history),
                "eventsLineCount": 0, "historyTail": json.dumps(last), "eventsTail": "[]",
                "config": run.facts.get("config") or "{}", "tags": run.facts.get("tags") or [],
                "wandbConfig": json.dumps({"t": 1}),
            }  # fmt: skip
        project = given.get("project") or "uncategorized"
        return {"model": {"id": "p", "name": project, "entity": {"id": "e", "name": ENTITY}, "bucket": bucket}}

    def _UpsertBucket(self, given: dict[str, Any]) -> dict[str, Any]:
        id = given.get("name") or given.get("id")
        inserted = id not in self.runs
        run = self.run_named(str(id), given.get("project") or "uncategorized")
        run.upserts.append(given)
        run.facts.update({key: value for key, value in given.items() if value is not None})
        project = {"id": "p", "name": run.project, "entity": {"id": "e", "name": ENTITY}}
        bucket = {
            "id": run.name, "name": run.name, "displayName": run.facts.get("displayName"), "description": "",
            "config": run.facts.get("config"), "sweepName": None, "project": project,
            "historyLineCount": len(run.lines.get("wandb-history.jsonl", {})),
        }  # fmt: skip
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def _ArtifactType(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"project": {"artifact": None}}

    def _CreateArtifact(self, given: dict[str, Any]) -> dict[str, Any]:
        self.artifacts.append(given["input"])
        id, sequence = f"artifact-{len(self.artifacts)}", {"id": "s", "latestArtifact": None}
        return {"createArtifact": {"artifact": {"id": id, "state": "PENDING", "artifactSequence": sequence}}}

    def _CreateArtifactManifest(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"createArtifactManifest": {"artifactManifest": self._manifest(given["artifactID"])}}

    def _UpdateArtifactManifest(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"updateArtifactManifest": {"artifactManifest": self._manifest(given["artifactManifestID"])}}

    def _CreateArtifactFiles(self, given: dict[str, Any]) -> dict[str, Any]:
        nodes = [
            {"storagePath": f["name"], "uploadUrl": f"{self.address}/artifact/{f['artifactID']}/{f['name']}",
             "uploadHeaders": [], "uploadMultipartUrls": None, "artifact": {"id": f["artifactID"]}}
            for f in given["input"]["artifactFiles"]
        ]  # fmt: skip
        return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}

    def _CommitArtifact(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"commitArtifact": {"artifact": {"id": given["artifactID"], "digest": "d"}}}

    def _manifest(self, id: str) -> dict[str, Any]:
        url = f"{self.address}/artifact/{id}/manifest"
        return {"id": id, "file": {"id": "f", "uploadUrl": url, "uploadHeaders": []}}

    def _CreateRunFiles(self, given: dict[str, Any]) -> dict[str, Any]:
        place = f"{self.address}/storage/{given['run']}"
        files = [{"name": name, "uploadUrl": f"{place}/{name}"} for name in given["files"]]
        return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}


class _Handler(BaseHTTPRequestHandler):
    server: WandbServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self._body()
        with self.server.held:
            if self.path == "/graphql":
                asked = json.loads(body)
                self._reply({"data": self.server.answer(asked["query"], asked.get("variables") or {})})
            elif match := re.fullmatch(r"/files/([^/]+)/([^/]+)/([^/]+)/file_stream", self.path):
                self._stream(self.server.run_named(match[3], match[2]), json.loads(body))
            else:
                self.server.unknown.append(f"POST {self.path}")
                self._reply({}, 404)

    def do_PUT(self) -> None:
        body = self._body()
        with self.server.held:
            _, kind, run, name = self.path.partition("?")[0].split("/", 3)
            if kind == "storage":
                self.server.runs[run].files[name] = body
            else:
                self.server.sent_files[f"{run}/{name}"] = body
            self._reply({})

    def do_GET(self) -> None:
        self.server.unknown.append(f"GET {self.path}")
        self._reply({}, 404)

    def _stream(self, run: StoredRun, sent: dict[str, Any]) -> None:
        run.posts.append(sent)
        for name, chunk in (sent.get("files") or {}).items():
            kept = run.lines.setdefault(name, {})
            for number, line in enumerate(chunk["content"], start=chunk.get("offset", 0)):
                kept[number] = line
        if sent.get("complete"):
            run.exit_code = sent.get("exitcode")
        self._reply({"exitcode": None, "limits": {}})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _reply(self, content: dict[str, Any], status: int = 200) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    """A server that listens while the block runs."""
    server = WandbServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
