"""The commands of docs/guides/cluster.md submit a sweep to a Ray cluster with a dashboard and a token."""

import re
import shlex
import subprocess
import time

import psutil
import pytest
import requests

from tests.deploy.head import ray_head
from tests.docs import pages
from tests.helpers import lost_nodes

pytest.importorskip("aiohttp_cors", reason="ray[default] is not installed")


def command(start, server, results, *overrides):
    """A command of the page with the address, the folder and the experiment of a test."""
    text = "\n".join(block.text for block in pages.blocks("docs/guides/cluster.md")).replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if line.startswith(start))
    line = line.replace("http://head:8265", server.address).replace("/shared/results", str(results))
    return line.replace("experiment=fig2c", shlex.join(overrides))


def call(line, server):
    done = subprocess.run(["bash", "-c", line], env=server.environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def summaries(results):
    return sorted(results.glob("lost/*/*/summary.json"))


def wait_until(condition, seconds=120.0):
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def check_none_runs(processes):
    assert len(processes) > 5  # Ray's own ones, at least
    assert psutil.wait_procs(processes, timeout=10)[1] == []


def test_a_sweep_is_submitted_as_a_job(tmp_path):
    with ray_head(cpus=1) as server:
        assert requests.get(f"{server.address}/api/jobs/", timeout=10).status_code == 401  # without the token
        code, said = call(command("ray job submit", server, tmp_path, *lost_nodes.RUN, "seeds=0..1"), server)
        assert code == 0 and "2 of 2 done" in said and "succeeded" in said, said
        status = f"RAY_ADDRESS={server.address} python -m runners.status --ray"
        assert call(status, server) == (0, "no actor is alive\n")
        processes = server.processes()
    assert len(summaries(tmp_path)) == 2
    assert [fault for path in summaries(tmp_path) for fault in lost_nodes.faults(path.parent)] == []
    check_none_runs(processes)


@pytest.mark.slow
def test_a_stopped_job_goes_on_and_an_interrupted_test_leaves_no_process(tmp_path):
    with pytest.raises(KeyboardInterrupt), ray_head(cpus=2) as server:
        submit = command("ray job submit", server, tmp_path, *lost_nodes.RUN, "seeds=0..5")
        code, said = call(submit.replace(" -- ", " --no-wait -- "), server)
        assert code == 0, said
        name = re.search(r"raysubmit_\w+", said)[0]
        wait_until(lambda: summaries(tmp_path))
        code, said = call(command("ray job stop", server, tmp_path).replace("raysubmit_...", name), server)
        assert code == 0 and "was stopped" in said, said
        before = {path: path.stat().st_mtime_ns for path in summaries(tmp_path)}
        assert 1 <= len(before) < 6

        code, said = call(submit, server)
        assert code == 0 and "6 of 6 done" in said, said
        assert len(summaries(tmp_path)) == 6
        assert {path: path.stat().st_mtime_ns for path in before} == before

        code, said = call(submit.replace("seeds=0..5", "seeds=0..99").replace(" -- ", " --no-wait -- "), server)
        assert code == 0, said
        wait_until(lambda: len(summaries(tmp_path)) > 6)
        processes = server.processes()
        raise KeyboardInterrupt
    check_none_runs(processes)
