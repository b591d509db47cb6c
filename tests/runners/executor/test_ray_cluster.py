"""Several Ray nodes, all of them on this machine."""

import tempfile

import pytest
import ray
from ray.cluster_utils import Cluster

from runners.executor.ray.federated import RayFederation
from runners.recorded_run import run_configuration
from tests.helpers.compose import compose
from tests.helpers.ray_runs import BOX, SHORT, run, same
from tests.helpers.small_runs import QUIET

CLUSTER = [*SHORT, *QUIET, "executor=ray_cluster", "executor.agents_per_actor=2"]


@pytest.fixture
def cluster(monkeypatch):
    """Three nodes of two CPUs each, which a run finds by RAY_ADDRESS."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        for _ in range(2):
            nodes.add_node(num_cpus=2)
        monkeypatch.setenv("RAY_ADDRESS", nodes.address)
        yield nodes
        ray.shutdown()
        nodes.shutdown()


@pytest.mark.slow
def test_a_run_on_three_nodes_of_which_one_goes_away(cluster, monkeypatch, tmp_path):
    """The records are those of one process; the server stays on the driver's node, which has the ledger."""
    _, local = run(tmp_path / "local", *BOX)
    deployments, place = [], RayFederation.place
    monkeypatch.setattr(RayFederation, "place", lambda self: (deployments.append(self), place(self)))
    before, here = {}, []

    def lose_a_node(done):
        if done.agents.round == 2:
            here.append(ray.get_runtime_context().get_node_id())
            before.update(nodes_of(deployments[0]))
            lost = next(n for n in cluster.worker_nodes if n.node_id in before.values() and n.node_id != here[0])
            here.append(lost.node_id)
            cluster.remove_node(lost)

    summary, folder = run_configuration(
        compose(*BOX, *CLUSTER, "executor.max_restarts=0", f"results_dir={tmp_path / 'ray'}"), lose_a_node
    )
    assert same(local, folder)
    driver, lost = here
    assert before["the server"] == driver
    agents = {name: node for name, node in before.items() if name != "the server"}
    assert len(agents) == 3
    assert len(set(agents.values())) >= 2
    after = nodes_of(deployments[0])
    assert lost not in after.values()
    assert summary["executor"]["preemptions"] == sum(node == lost for node in agents.values()) > 0
    assert summary["executor"]["restarts"] == 0
    assert {n: after[n] for n in before if before[n] != lost} == {n: v for n, v in before.items() if v != lost}
    assert not ray.is_initialized()  # the run closes its connection
    assert cluster.remaining_processes_alive()  # the run leaves the cluster alone
    assert len(cluster.list_all_nodes()) == 2


def nodes_of(deployment):
    """The node of each actor, by its name."""
    return {name: place.node for name, place in deployment.placements.items()}
