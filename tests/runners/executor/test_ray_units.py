"""Parts of executor=ray that need no Ray cluster."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfbo.federated.broadcast import RegionVectors
from dpfbo.privacy.release import Diagnostics
from dpfbo.records import ServerRecord

pytest.importorskip("ray")

from ray.exceptions import RaySystemError

from runners.executor.deployment import ExecutorError, limit_gpu_memory
from runners.executor.ray import cluster, federated, supervision
from runners.executor.ray.actors import AgentActor, ServerActor
from runners.executor.ray.modeler import ModelerActor
from tests.helpers.compose import compose


@pytest.mark.parametrize(
    ("k", "cpus", "share"),
    [
        (2, [2.0], 1.0),
        (3, [1.0, 1.0], 0.5),
        (29, [2.0], 0.068),
        (1, [4.0], 1.0),
        (3, [2.0, 0.0], 0.666),
        (2, [0.0], 0.0),
    ],
)
def test_fair_share_fits_on_the_nodes_one_by_one(k, cpus, share):
    assert cluster._fair_share(k, cpus) == pytest.approx(share, abs=1e-3)
    if share:
        assert sum(int(c / cluster._fair_share(k, cpus) + 1e-9) for c in cpus) >= k


@pytest.mark.parametrize(
    ("settings", "room"),
    [
        ({"agents_per_actor": "auto"}, 3),
        ({"num_cpus": 0.5}, 6),
        ({"num_gpus": 0.1}, 10),
        ({"num_cpus": 2}, 1),
        ({}, 22),
    ],
)
def test_room_is_counted_node_by_node(settings, room):
    nodes = [{"CPU": 1.0, "GPU": 1.0, "memory": 9e9}, {"CPU": 2.0}]
    if settings == {}:
        nodes = [nodes[0]]
    executor = SimpleNamespace(**{"agents_per_actor": 1, "num_cpus": None, "num_gpus": 0, **settings})
    assert cluster._room(executor, nodes) == room


def test_calls_that_fail_although_nobody_is_dead_end_the_run():
    deployment = object.__new__(federated.RayFederation)
    deployment._unexplained, deployment.actors = 0, []
    deployment.done = federated.FederatedResult()
    deployment._start = lambda actors: None
    for _ in range(supervision._MAX_UNEXPLAINED):
        deployment.heal(RaySystemError("no room"))
    with pytest.raises(ExecutorError, match="no actor is dead.*no room"):
        deployment.heal(RaySystemError("no room"))


def test_messages_of_another_shape_shift_nobody_elses():
    class Server:
        def round(self, t, messages, late):
            self.got = messages.numpy()
            return None, None, None

    actor = object.__new__(ServerActor.__ray_metadata__.modified_class)
    actor._server = server = Server()
    ones = np.ones((2, 3))
    actor.round(0, None, 3, [2, 2, 2, 2, 2], ones, np.ones((5, 3)), np.ones((2, 4)), None, 2 * ones)
    assert server.got.shape == (10, 3)
    assert np.isnan(server.got[2:8]).all()
    assert (server.got[:2] == 1).all() and (server.got[8:] == 2).all()


def test_private_numbers_do_not_travel_with_what_is_large():
    """Agents map the memory of large objects, so released values and private numbers are separate objects."""
    broadcast, private = RegionVectors(torch.ones(4, 20_000)), Diagnostics(7.0, 8.0, 3, 1, 0, 2)
    record = ServerRecord(0, 1.0, 1.0, 1.0)

    class Server:
        def round(self, t, messages, late):
            return broadcast, record, private

    actor_class = ServerActor.__ray_metadata__.modified_class
    actor = object.__new__(actor_class)
    actor._server = Server()
    assert actor_class.round.__ray_num_returns__ == actor_class.round_by_shards.__ray_num_returns__ == 3
    for parts in (actor.round(0, None, 3, []), actor.round_by_shards(0, None, [0], [])):
        assert parts == (broadcast, record, private)
        assert all(len(pickle.dumps(part)) < 2000 for part in parts[1:])


def test_a_deadline_needs_agents_that_are_late_alone():
    from runners.compose.composition import build

    given = ["executor=ray", "dropout.deadline=1", "privacy.rng=os"]
    with pytest.raises(ValueError, match="agents_per_actor=1"):
        build(compose(*given))
    build(compose(*given, "executor.agents_per_actor=1"))
    build(compose(*given[:2]))


@pytest.mark.parametrize(("share", "limits"), [(0.1, [0.1]), (0.5, [0.5]), (0.0, []), (1, []), (2.0, [])])
def test_a_share_of_a_gpu_is_a_share_of_its_memory(monkeypatch, share, limits):
    found = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", found.append)
    limit_gpu_memory(share)
    assert found == limits


def test_without_a_gpu_there_is_nothing_to_limit(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share: 1 / 0)
    limit_gpu_memory(0.5)


@pytest.mark.parametrize(
    ("node", "account", "at_fault"),
    [
        ("here", "The actor is dead because its worker process has died. SYSTEM_ERROR", True),
        ("gone", "The actor is dead because its worker process has died. SYSTEM_ERROR", False),
        ("here", "Worker exit type: NODE_OUT_OF_MEMORY", False),
        ("here", "Task was killed due to the node running low on memory.", False),
    ],
)
def test_actors_whose_node_goes_away_are_not_at_fault(monkeypatch, node, account, at_fault):
    nodes = [{"NodeID": "here", "Alive": True}, {"NodeID": "gone", "Alive": False}]
    monkeypatch.setattr(supervision.ray, "nodes", lambda: nodes)
    deployment = object.__new__(federated.RayFederation)
    deployment.placements, deployment.done = {"agents": SimpleNamespace(node=node)}, SimpleNamespace(rounds=[])
    actor = supervision.Actor("agents", None, {}, (), death=RaySystemError(account))
    assert deployment._excused(actor) is not at_fault


def test_preemptions_of_one_round_end(monkeypatch):
    monkeypatch.setattr(supervision.ray, "nodes", lambda: [])
    deployment = object.__new__(federated.RayFederation)
    deployment.placements, deployment.done = {"agents": SimpleNamespace(node="gone")}, SimpleNamespace(rounds=[1, 2])
    actor = supervision.Actor("agents", None, {}, (), death=RaySystemError("NODE_OUT_OF_MEMORY"))
    excused = [deployment._excused(actor) for _ in range(12)]
    assert excused == [True] * 10 + [False] * 2
    deployment.done.rounds.append(3)
    assert deployment._excused(actor) and deployment.placements == {}


def test_actors_have_readable_names_in_rays_lists():
    assert repr(AgentActor.__ray_actor_class__(None, 0, 5, "")) == "dpfbo agents 0-4"
    assert repr(ServerActor.__ray_actor_class__(None, "", "")) == "dpfbo server"
    assert repr(ModelerActor.__ray_actor_class__()) == "dpfbo modeler"


@pytest.mark.parametrize(
    ("rounds", "cpu", "objective", "gpus", "faster"),
    [(4.0, 3.0, 0.2, 0, True), (2.0, 3.0, 0.2, 0, False), (4.0, 3.0, 2.0, 0, False), (4.0, 3.0, 0.2, 0.25, False)],
)
def test_one_process_would_be_faster_if_one_core_has_time_for_all_steps(rounds, cpu, objective, gpus, faster):
    run = object.__new__(federated.RayFederation)
    run.seconds, run.agents_cpu_seconds, run.objective_seconds = rounds, cpu, objective
    run.executor = SimpleNamespace(num_gpus=gpus)
    assert run._faster_local() is faster
