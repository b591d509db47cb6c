"""Agents and coordinator as processes that may end between any two calls: the simulation's points, charged once."""

import json
import os
import random
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch

import dpfbo
from dpfbo import (
    Agent,
    Categorical,
    Coordinator,
    Float,
    Integer,
    SettingError,
    Space,
    StateError,
    WireError,
)
from dpfbo.federated.server import Server
from dpfbo.formats.journal import Journal
from dpfbo.gp import Acquisition
from dpfbo.privacy.ledger import Ledger, LedgerError
from dpfbo.problems.custom import Custom
from dpfbo.protocol import coordinator
from tests.helpers.objectives import tuned

SPACE = Space({"rate": Float(1e-4, 1.0, log=True), "depth": Integer(1, 12), "kind": Categorical(["a", "b", "c"])})
N, T, N_INIT = 4, 4, 3
FEW = Acquisition(n_candidates=30, n_starts=2)
SERVED = ("dp_prior", "dp_fts_de", "fts_original", "sobol_server")


def study_of(name="dp_prior", rng="seeded", z=None, **changes):
    privacy = {"noise_multiplier": z} if z or not name.startswith("dp_") else {"epsilon": 2.0}
    made = dpfbo.create_study(
        SPACE, n_agents=N, algorithm=name, rounds=T, n_init=N_INIT, seed=5, rng=rng, acquisition=FEW, **privacy
    )
    return replace(made, **changes)


def queries(result):
    """By agent, its configurations in the order of the queries."""
    rounds = result.result.rounds
    x = torch.cat([r.x for r in rounds], 1)
    return [[SPACE.configuration(point) for point in agent] for agent in x]


def simulated(study):
    return dpfbo.run_study(study, Custom(tuned, n_agents=N, space=SPACE))


class World:
    """N agents and a coordinator, made anew from their folders for every call if `restart` says so."""

    def __init__(self, study, folder=None, restart=lambda: False):
        self.study, self.folder, self.restart, self._alive = study, folder, restart, {}

    def __getitem__(self, who):
        if who in self._alive and self.folder is not None and self.restart():
            self._alive.pop(who).close()
        if who not in self._alive:
            folder = None if self.folder is None else self.folder / str(who)
            made = Coordinator(self.study, folder) if who == "server" else Agent(self.study, who, folder)
            self._alive[who] = made
        return self._alive[who]

    def evaluate(self, n):
        x = self[n].ask()
        self[n].tell(x, tuned(n, x))
        return x

    def run(self):
        found = [[self.evaluate(n) for _ in range(N_INIT)] for n in range(N)]
        for t in range(T):
            if not self["server"].finished:
                for n in range(N):
                    if self[n].message_due:
                        self["server"].receive(n, self[n].message())
                data = self["server"].release()
                for n in range(N):
                    self[n].receive(data)
            for n in range(N):
                assert self[n].round <= t + 1
                found[n].append(self.evaluate(n))
        return found


@pytest.mark.parametrize("name", [*SERVED, "ts"])
def test_the_points_are_those_of_the_simulation(name):
    study = study_of(name)
    world, simulation = World(study), simulated(study)
    assert world.run() == queries(simulation)
    assert [(c.round, c.digest) for c in world["server"].ledger.charges] == [
        (c.round, c.digest) for c in simulation.ledger.charges
    ]
    assert world["server"].epsilon == simulation.epsilon
    for best, n in zip(simulation.best(), range(N), strict=True):
        assert world[n].best() == (best.configuration, best.value)


def test_the_points_with_broadcasts_that_end():
    ended = study_of("dp_fts_de", algorithm=replace(dpfbo.algorithm_named("dp_fts_de"), broadcasts=2))
    assert World(ended).run() == queries(simulated(ended))


@pytest.mark.parametrize("name", ["dp_prior", "dp_fts_de"])
@pytest.mark.parametrize("seed", [0, 1])
def test_processes_that_end_between_any_two_calls_lose_nothing(tmp_path, name, seed):
    study, dice = study_of(name), random.Random(seed)
    ends = []

    def restart():
        ends.append(dice.random() < 0.7)
        return ends[-1]

    world = World(study, tmp_path, restart)
    assert world.run() == queries(simulated(study))
    assert sum(ends) >= 50
    charges = Ledger(tmp_path / "server" / "ledger.jsonl").charges
    assert [c.round for c in charges] == list(range(study.broadcasts))


@pytest.mark.parametrize("damage", ["cut off", "edited", "deleted"])
def test_a_coordinator_whose_ledger_was_touched_is_refused(tmp_path, damage):
    world = World(study_of("dp_fts_de"), tmp_path)
    world.run()
    world["server"].close()
    path = tmp_path / "server" / "ledger.jsonl"
    lines, content = path.read_bytes().splitlines(keepends=True), path.read_bytes()
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(b"".join(lines[:-1]) if damage == "cut off" else content.replace(b'"z": ', b'"z": 9', 1))
    t = {"cut off": len(lines) - 2, "deleted": 0}.get(damage)
    says = "line 2 does not follow" if t is None else f"lacks the broadcast of round {t}, which was sent: restore"
    for _ in range(2):  # the folder is not kept from the next one
        with pytest.raises(LedgerError, match=says):
            Coordinator(world.study, tmp_path / "server")
    path.write_bytes(content)
    Coordinator(world.study, tmp_path / "server").close()


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("rng", ["seeded", "os"])
def test_a_coordinator_killed_at_any_write_releases_once(tmp_path, monkeypatch, rng):
    """Each write of the journal, of a file and of the ledger is the last one of some process."""
    study = study_of("dp_fts_de", rng=rng)
    agents = World(study)
    for n in range(N):
        for _ in range(N_INIT):
            agents.evaluate(n)
    messages = [agents[n].message() for n in range(N)]
    steps, dies_at = [0], [0]

    def dying(call):
        def wrapped(*arguments, **others):
            result = call(*arguments, **others)
            steps[0] += 1
            if steps[0] == dies_at[0]:
                raise Killed
            return result

        return wrapped

    for owner, name in ((Journal, "append"), (Journal, "keep"), (Ledger, "charge")):
        monkeypatch.setattr(owner, name, dying(getattr(owner, name)))
    released, last = set(), 0
    for dies_at[0] in range(1, 40):
        steps[0] = 0
        try:
            server = Coordinator(study, tmp_path / "server")
            try:
                for n, message in enumerate(messages):
                    server.receive(n, message)
                released.add(server.release(round=0))
                last = dies_at[0]
            finally:
                server.close()
        except Killed:
            continue
    assert last and len(released) == 1
    charges = Ledger(tmp_path / "server" / "ledger.jsonl").charges
    assert [c.round for c in charges] == [0]


def test_several_points_at_a_time_late_values_and_failures():
    study = study_of("dp_fts_de")
    world = World(study)
    for n in range(N):
        for _ in range(N_INIT):
            world.evaluate(n)
        world["server"].receive(n, world[n].message())
    data = world["server"].release()
    agent = world[0]
    agent.receive(data)
    points = [agent.ask() for _ in range(3)]
    assert len({str(p) for p in points}) == 3
    assert list(agent.pending.values()) == points and agent.round == 1
    agent.tell(points[2], 0.5)
    agent.tell(points[0], failed=True)
    assert list(agent.pending.values()) == [points[1]]
    agent.message()  # of what is known now
    following = agent.ask()
    assert agent.round == 2 and following not in points
    agent.tell(points[1], 9.0)
    assert agent.best() == (points[1], 9.0)
    agent.tell(following, 1.0)


def test_an_agent_may_tell_of_points_that_nobody_asked_for_and_of_more_than_planned():
    study = study_of("ts")
    world = World(study)
    for _ in range(N_INIT):
        world.evaluate(1)
    agent = world[1]
    for i in range(2 * T + 2):
        agent.tell({"rate": 0.01, "depth": 1 + i, "kind": "b"}, float(i))
    assert agent.best()[1] == 2 * T + 1
    for _ in range(T + 3):
        world.evaluate(1)
    assert agent.round == T + 3


def told_of(agent, n=N_INIT):
    for x in agent.ask(n):
        agent.tell(x, tuned(agent.agent, x))


EARLIER = [({"rate": 0.02, "depth": 5, "kind": "b"}, 0.31), ({"rate": 0.5, "depth": 9, "kind": "a"}, -0.9)]


@pytest.mark.parametrize("name", ["dp_prior", "dp_fts_de", "local", "ts"])
def test_values_of_an_earlier_study_help_the_agent_and_change_no_first_message(tmp_path, name):
    study = study_of(name)
    plain, warm = Agent(study, 1), Agent(study, 1, tmp_path / "warm")
    for x, y in EARLIER:
        warm.tell(x, y)
        warm.tell(x, y)  # a repeated call changes nothing
    assert warm.best() == EARLIER[0]
    for agent in (plain, warm):
        told_of(agent)
    if study.algorithm.sends:
        assert warm.message() == plain.message()
    first = warm.ask()
    assert first != plain.ask()
    warm.tell(first, tuned(1, first))
    second = warm.ask()
    warm.close()
    again = Agent(study, 1, tmp_path / "warm")
    assert list(again.pending.values()) == [second] and again.best() == warm.best()


def test_values_of_an_earlier_study_reach_an_agent_that_is_later_than_the_broadcast():
    study = study_of("dp_prior")
    world = World(study)
    for n in range(1, N):
        told_of(world[n])
        world["server"].receive(n, world[n].message())
    data = world["server"].release(missing_ok=True)
    asked = []
    for told in ((), EARLIER):
        late = Agent(study, 0)
        late.receive(data)
        for x, y in told:
            late.tell(x, y)
        told_of(late)
        asked.append(late.ask())
    assert asked[0] != asked[1]


@pytest.mark.parametrize("name", ["dp_prior", "local", "ts", "dp_fts_de"])
def test_points_that_are_asked_for_together_differ(name):
    study = study_of(name)
    one, other = Agent(study, 0), Agent(study, 0)
    for agent in (one, other):
        told_of(agent)
        if study.algorithm.sends:
            agent.message()
    together = one.ask(4)
    assert together == [other.ask() for _ in range(4)] and len({str(x) for x in together}) == 4
    assert list(one.pending.values()) == together
    for x in together[::-1]:
        one.tell(x, tuned(0, x))
    assert not one.pending


def test_a_value_is_told_by_number_where_two_points_are_equal():
    study = dpfbo.create_study({"k": Integer(1, 2)}, n_agents=2, algorithm="ts", rounds=9, n_init=2, acquisition=FEW)
    agent = Agent(study, 0)
    for x in agent.ask(2):
        agent.tell(x, 0.0)
    agent.ask(5)
    first, *_, last = agent.pending
    agent.tell(last, 5.0)
    assert last not in agent.pending and first in agent.pending
    agent.tell(last, 5.0)
    with pytest.raises(StateError, match=f"another value was told already for {last}"):
        agent.tell(last, 6.0)
    for number in (99, -1, True):
        with pytest.raises(StateError, match=f"x must be a configuration or the number of one .*, got {number}"):
            agent.tell(number, 1.0)
    with pytest.raises(SettingError, match="n must be an integer of at least 1, got 0"):
        agent.ask(0)
    with pytest.raises(StateError, match=r"and 2 of them are left: ask\(2\)"):
        Agent(study, 0).ask(3)


@pytest.mark.parametrize("failed", [[0], [0, 2], [0, 1, 2]])
def test_failed_initial_points_count_as_the_worst_ones(failed):
    study = study_of("dp_prior")
    agent, other = Agent(study, 0), Agent(study, 0)
    points = [agent.ask() for _ in range(N_INIT)]
    values = [tuned(0, x) for x in points]
    worst = min((v for i, v in enumerate(values) if i not in failed), default=0.0)
    for i, x in enumerate(points):
        agent.tell(x, failed=True) if i in failed else agent.tell(x, values[i])
        assert other.ask() == x
        other.tell(x, worst if i in failed else values[i])
    assert agent.message() == other.message()


def test_an_agent_that_is_later_than_the_broadcast_begins_with_its_initial_points():
    world = World(study_of("dp_fts_de"))
    for n in range(1, N):
        for _ in range(N_INIT):
            world.evaluate(n)
        world["server"].receive(n, world[n].message())
    late, other = Agent(world.study, 0), Agent(world.study, 0)
    late.receive(world["server"].release(missing_ok=True))
    for _ in range(N_INIT):
        x = late.ask()
        assert x == other.ask()
        late.tell(x, tuned(0, x))
    late.ask()
    assert late.round == 1 and len(late.pending) == 1


def test_small_values_are_better_if_the_agent_says_so():
    study = study_of("ts")
    up, down = Agent(study, 2), Agent(study, 2, maximize=False)
    for _ in range(N_INIT + 2):
        x = up.ask()
        assert down.ask() == x
        up.tell(x, tuned(2, x))
        down.tell(x, -tuned(2, x))
    assert down.best() == (up.best()[0], -up.best()[1])


def test_a_lost_message_is_made_again_and_a_broadcast_may_come_twice():
    study = study_of("dp_fts_de")
    world = World(study)
    for n in range(N):
        for _ in range(N_INIT):
            world.evaluate(n)
    first = world[0].message()
    assert world[0].message() == first
    world["server"].receive(0, first)
    world["server"].receive(0, first)
    assert world["server"].received == [0]
    assert world["server"].missing == [1, 2, 3]
    with pytest.raises(
        StateError, match="1 of 4 messages of round 0 have arrived, agents 1, 2, 3 are missing: missing_ok"
    ):
        world["server"].release()
    assert not world["server"].ledger.charges
    data = world["server"].release(missing_ok=True)
    assert world["server"].release() == data == world["server"].release(round=0)
    world[0].receive(data)
    world[0].receive(data)
    world.evaluate(0)
    assert world[0].message(round=0) == first
    world["server"].receive(0, first)  # too late for anything, and known
    with pytest.raises(StateError, match="the message is of round 0, and round 1 is in progress: it counts as lost"):
        world["server"].receive(1, world[1].message())


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_message_of_a_closed_round_changes_nothing(tmp_path, monkeypatch):
    """A round is closed, on disk, before its release is made: by a process that died, or by one that went on."""
    study, folder = study_of("dp_fts_de", z=1.0), tmp_path / "server"
    agents, whole = World(study), Coordinator(study)
    for n in range(N):
        for _ in range(N_INIT):
            agents.evaluate(n)
    messages = [agents[n].message() for n in range(N)]
    server = Coordinator(study, folder)
    for n in (0, 1, 2):
        server.receive(n, messages[n])
        whole.receive(n, messages[n])

    def dies(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Server, "round", dies)
        with pytest.raises(Killed):
            server.release(missing_ok=True)
    server.close()
    server = Coordinator(study, folder)
    before = contents(folder)
    for t in (0, 1):  # before the release, and after it
        with pytest.raises(StateError, match=f"is of round 0, and round {t} is in progress: it counts as lost"):
            server.receive(3, messages[3])
        server.receive(0, messages[0])
        assert contents(folder) == before and server.received == ([0, 1, 2] if t == 0 else [])
        data = server.release(round=0)
        assert data == whole.release(round=0, missing_ok=True)
        before = contents(folder)
    assert [c.round for c in server.ledger.charges] == [0]


def test_a_message_after_the_last_broadcast_changes_nothing(tmp_path):
    study, folder = study_of("dp_fts_de", z=1.0, rounds=1), tmp_path / "server"
    agents, server = World(study), Coordinator(study, folder)
    for _ in range(N_INIT):
        agents.evaluate(0)
    message = agents[0].message()
    server.receive(0, message)
    server.release(missing_ok=True)
    before = contents(folder)
    with pytest.raises(StateError, match="is of round 1, and round 1 is in progress: it counts as lost"):
        server.receive(0, message.replace(b'"round": 0', b'"round": 1'))
    assert server.finished and server.received == [] and contents(folder) == before


def test_files_are_for_their_owner_alone(tmp_path):
    world = World(study_of("dp_fts_de"), tmp_path)
    for n in range(N):
        for _ in range(N_INIT):
            world.evaluate(n)
        world["server"].receive(n, world[n].message())
    for path in (p for p in tmp_path.rglob("*") if p.suffix in (".bin", ".jsonl")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((tmp_path / "0").stat().st_mode) == 0o700


@pytest.mark.parametrize("umask", [0, 0o777])
def test_new_files_and_folders_are_their_owners_alone_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        Agent(study_of(), 0, tmp_path / "agent").close()
        Coordinator(study_of(), tmp_path / "server").close()
    finally:
        os.umask(before)
    for folder, names in (("agent", {"agent.jsonl"}), ("server", {"coordinator.jsonl", "ledger.jsonl"})):
        assert {path.name for path in (tmp_path / folder).iterdir()} == names
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700
        for name in names:
            assert stat.S_IMODE((tmp_path / folder / name).stat().st_mode) == 0o600


def test_existing_files_keep_their_mode(tmp_path):
    paths = [tmp_path / "agent" / "agent.jsonl", tmp_path / "s" / "coordinator.jsonl", tmp_path / "s" / "ledger.jsonl"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.touch()
        path.chmod(0o640)
    Agent(study_of(), 0, tmp_path / "agent").close()
    Coordinator(study_of(), tmp_path / "s").close()
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o640] * 3


def test_a_relative_folder_is_that_of_the_first_working_directory(tmp_path, monkeypatch):
    """The working directory changes between any two calls, and all files are in the folders that were named."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    study = study_of("dp_fts_de", rng="os")
    agents = [Agent(study, n, f"site{n}") for n in range(N)]
    server = Coordinator(study, "server")
    monkeypatch.chdir(tmp_path / "elsewhere")
    for n, agent in enumerate(agents):
        for _ in range(N_INIT):
            x = agent.ask()
            agent.tell(x, tuned(n, x))
        server.receive(n, agent.message())
    data = server.release()
    for agent in agents:
        agent.receive(data)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert len(Ledger(tmp_path / "server" / "ledger.jsonl").charges) == 1
    server.close()
    monkeypatch.chdir(tmp_path)
    assert Coordinator(study, "server").release(0) == data


def test_a_deleted_message_is_one_sentence_and_is_back_once_restored(tmp_path):
    world = World(study_of("dp_fts_de"), tmp_path)
    for n in range(N):
        for _ in range(N_INIT):
            world.evaluate(n)
        world["server"].receive(n, world[n].message())
    world["server"].close()
    del world._alive["server"]
    names = list((tmp_path / "server").glob("*.bin"))
    data = names[0].read_bytes()
    names[0].unlink()
    with pytest.raises(StateError, match=f"{names[0].name} is missing in .*: restore it"):
        world["server"].release()
    assert not (tmp_path / "server" / "ledger.jsonl").exists() or not Ledger(tmp_path / "server/ledger.jsonl").charges
    names[0].write_bytes(data)
    assert world["server"].release()


def test_folders_may_be_text(tmp_path):
    study = study_of("dp_fts_de")
    Agent(study, 0, str(tmp_path / "a")).close()
    Coordinator(study, str(tmp_path / "s")).close()
    assert (tmp_path / "a" / "agent.jsonl").exists()
    with pytest.raises(StateError, match="is of .*, and this is"):
        Coordinator(study_of("dp_prior"), str(tmp_path / "s"))
    assert Ledger(str(tmp_path / "ledger.jsonl")).charges == []


def test_a_second_process_on_a_folder_and_another_study_are_refused(tmp_path):
    agent = Agent(study_of(), 0, tmp_path / "a")
    with pytest.raises(StateError, match="another process works in"):
        Agent(study_of(), 0, tmp_path / "a")
    agent.close()
    for study, n in ((study_of("ts"), 0), (study_of(), 1)):
        with pytest.raises(StateError, match="is of .*, and this is"):
            Agent(study, n, tmp_path / "a")
    Coordinator(study_of(), tmp_path / "s").close()
    with pytest.raises(StateError, match="is of .*, and this is"):
        Coordinator(study_of("dp_fts_de"), tmp_path / "s")


def test_a_journal_that_was_cut_goes_on_and_a_damaged_one_is_refused(tmp_path):
    world = World(study_of("ts"), tmp_path)
    points = [world.evaluate(0) for _ in range(2)]
    world[0].close()
    journal = tmp_path / "0" / "agent.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-5])  # the last value was not written to the end
    agent = Agent(world.study, 0, tmp_path / "0")
    assert list(agent.pending.values()) == [points[1]]
    agent.close()
    journal.write_bytes(whole.replace(b'"event": "tell"', b'"event": "te', 1))
    with pytest.raises(StateError, match="line 3 cannot be read: restore the file"):
        Agent(world.study, 0, tmp_path / "0")


class TestCallsThatDoNotFit:
    @pytest.fixture
    def agent(self):
        return Agent(study_of("dp_fts_de"), 0)

    def test_before_the_initial_values(self, agent):
        points = [agent.ask() for _ in range(N_INIT)]
        with pytest.raises(StateError, match="3 initial points have no value yet: tell their values first"):
            agent.ask()
        with pytest.raises(StateError, match="the message of round 0 needs the values of 3 more points"):
            agent.message()
        agent.tell(points[0], 1)
        agent.tell(points[0], 1)
        with pytest.raises(StateError, match="another value was told already for"):
            agent.tell(points[0], 2)
        with pytest.raises(StateError, match="needs the values of 2 more points"):
            agent.message()

    def test_before_the_message(self, agent):
        for _ in range(N_INIT):
            agent.tell(agent.ask(), 1.0)
        with pytest.raises(StateError, match=r"round 0 ends with a message: call message\(\) before the next point"):
            agent.ask()
        with pytest.raises(StateError, match="no message is due in round 2"):
            agent.message(round=2)

    @pytest.mark.parametrize("y", [float("nan"), float("inf"), "1", True, None])
    def test_values_that_are_no_numbers(self, agent, y):
        with pytest.raises(StateError, match="must be a finite number, got|tell needs a value or failed=True"):
            agent.tell(agent.ask(), y)

    @pytest.mark.parametrize("y", [10**400, -1.7e308, 2e100])
    def test_values_whose_squares_are_infinite(self, agent, y):
        x = agent.ask()
        with pytest.raises(StateError, match=r"y must be a number up to 1e\+100, got "):
            agent.tell(x, y)
        agent.tell(x, 1e100)

    @pytest.mark.parametrize("x", [None, "abc", 3.0, [None, 1, 2], [10**400, 1, 1], ["a", 1, 2]])
    def test_points_that_are_none(self, agent, x):
        with pytest.raises(StateError, match="x must (be a configuration|have 3 numbers), got "):
            agent.tell(x, 1.0)

    def test_an_array_of_numbers_is_a_point(self):
        study = dpfbo.create_study(dpfbo.Box((0.0, 0.0), (1.0, 2.0)), n_agents=N, algorithm="ts", rounds=T, n_init=1)
        agent = Agent(study, 0)
        agent.ask()
        agent.tell(np.array([0.5, 0.5]), 1.0)
        assert agent.best() == ([0.5, 0.5], 1.0)

    def test_points_outside_the_space(self, agent):
        with pytest.raises(SettingError, match="depth must be a whole number from 1 to 12, got 99"):
            agent.tell({"rate": 0.3, "depth": 99, "kind": "a"}, 1.0)
        with pytest.raises(StateError, match="x must have 3 numbers, got"):
            agent.tell([0.1], 1.0)

    def test_another_agent(self):
        with pytest.raises(SettingError, match="agent must be at most 3, got 4"):
            Agent(study_of(), 4)

    def test_real_releases_in_memory(self):
        with pytest.raises(SettingError, match="folder must be given where releases are real"):
            Coordinator(study_of(rng="os"))

    def test_release_without_messages(self):
        server = Coordinator(study_of("dp_fts_de"))
        with pytest.raises(StateError, match="0 of 4 messages of round 0 have arrived, agents 0, 1, 2, 3 are missing"):
            server.release()
        with pytest.raises(StateError, match="round 1 cannot be released: 0 of 4 broadcasts are made"):
            server.release(round=1)
        assert server.release(round=0, missing_ok=True)  # noise alone, if one insists
        assert len(server.ledger.charges) == 1


class TestBytes:
    @pytest.fixture(scope="class")
    def message(self):
        agent = Agent(study_of(), 0)
        for _ in range(N_INIT):
            x = agent.ask()
            agent.tell(x, tuned(0, x))
        return agent.message()

    def changed(self, message, **entries):
        """The message with other entries of its header."""
        length = int.from_bytes(message[8:12], "big")
        header = {**json.loads(message[12 : 12 + length]), **entries}
        text = json.dumps(header).encode()
        return message[:8] + len(text).to_bytes(4, "big") + text + message[12 + length :]

    @pytest.mark.parametrize(
        ("entries", "sentence"),
        [
            ({"study": "0" * 16}, "the bytes are of study '0000000000000000', and this one is"),
            ({"agent": 1}, "the message is of agent 1, and agent 0 of 0..3 sent it"),
            ({"agent": None}, "the bytes must be an agent's message"),
            ({"kind": "SharedPrior"}, "the bytes must be an agent's message, got a SharedPrior"),
            ({"round": -1}, "the header of the bytes cannot be read"),
            ({"round": True}, "the header of the bytes cannot be read"),
            ({"round": 3}, "the message is of round 3, and round 0 is in progress"),
            ({"arrays": {"values": [2**30, 2**30]}}, "the bytes must hold at most 80 numbers"),
            ({"arrays": {"values": [79]}}, "the bytes must be .* long, got"),
            ({"arrays": {"values": [-80]}}, "the header of the bytes cannot be read"),
            ({"arrays": [80]}, "the header of the bytes cannot be read"),
        ],
    )
    def test_other_messages_are_refused(self, message, entries, sentence):
        server = Coordinator(study_of())
        with pytest.raises((WireError, StateError), match=sentence):
            server.receive(0, self.changed(message, **entries))
        assert server.received == []

    def test_no_damage_is_more_than_a_sentence(self, message):
        server, dice = Coordinator(study_of()), random.Random(0)
        server.receive(0, message)
        for _ in range(300):
            data = bytearray(message)
            for _ in range(dice.randint(1, 4)):
                data[dice.randrange(len(data) if dice.random() < 0.5 else 200)] = dice.randrange(256)
            data = bytes(data)[: dice.randrange(len(data)) if dice.random() < 0.3 else None]
            if data != message:
                with pytest.raises((WireError, StateError)):
                    server.receive(0, data)

    def test_numbers_that_are_not_finite_count_as_zero(self, message):
        nan = torch.full((80,), float("nan"), dtype=torch.float64).numpy().tobytes()
        server = Coordinator(study_of())
        server.receive(0, message[: -len(nan)] + nan)
        agent = Agent(study_of(), 1)
        agent.receive(server.release(missing_ok=True))

    def test_a_broadcast_is_no_message(self, message):
        server = Coordinator(study_of())
        server.receive(0, message)
        data = server.release(missing_ok=True)
        with pytest.raises(WireError, match="the bytes must hold at most 80 numbers|must be an agent's message"):
            Coordinator(study_of()).receive(0, data)
        with pytest.raises(WireError, match="the bytes must be a server's broadcast, got a message"):
            Agent(study_of(), 0).receive(message)


def test_a_coordinator_goes_on_with_its_code_and_its_ledger_alone(tmp_path, monkeypatch):
    study = study_of("dp_fts_de")
    Coordinator(study, tmp_path / "a").close()
    other = {**coordinator.code_digests(), "federated/mechanism.py": "0" * 16}
    monkeypatch.setattr(coordinator, "code_digests", lambda: other)
    with pytest.raises(StateError, match=r"begun with other code of the mechanism \(federated/mechanism.py\)"):
        Coordinator(study, tmp_path / "a")
    Coordinator(study, tmp_path / "a", any_code=True).close()
    with pytest.raises(SettingError, match="any_code must be False where releases are real"):
        Coordinator(replace(study, rng="os"), tmp_path / "b", any_code=True)
    Coordinator(replace(study, seed=study.seed + 1), tmp_path / "c").close()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "ledger.jsonl").write_bytes((tmp_path / "c" / "ledger.jsonl").read_bytes())
    with pytest.raises(LedgerError, match="is of another run"):
        Coordinator(study, tmp_path / "d")
