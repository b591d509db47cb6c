"""Deployments on this machine: a project with its sites, played in this process, and the same study as a simulation."""

import contextlib
import io
import json
import shutil

import dpfbo
from dpfbo.secure import Roster, SecureCoordinator, SecureSite, SiteKey
from runners.deploy import command
from runners.deploy.exchange import Exchange, Pace
from runners.deploy.parties import server_party, site_party
from runners.deploy.project import Project
from runners.deploy.site_folder import DONE, WAITS, SiteFolder
from tests.helpers.objectives import tuned
from tests.helpers.studies import SPACE

N_INIT, T = 3, 2


def call(*arguments, code=0):
    """What a command prints as JSON."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert command.main([str(a) for a in arguments]) == code
    return json.loads(text.getvalue()) if code == 0 else None


def deployed(folder, n, *options, roster=None):
    """A project and its sites' folders, all keys exchanged; `roster`: the sites whose keys are added (all)."""
    (folder / "space.yaml").write_text(SPACE)
    few = ["--agents", n, "--n-init", N_INIT, "--rounds", T, "--delta", "1e-3", "--epsilon", 2, "--rng", "seeded"]
    call("init", folder / "project", "--space", folder / "space.yaml", *few, *options)
    sites = [folder / f"site{k}" for k in range(n)]
    for k, site in enumerate(sites):
        call("site-key", site)
        if roster is None or k in roster:
            call("roster", "add", folder / "project", "--agent", k, "--keys", site / "public.json")
    for site in sites:
        for file in (folder / "project" / "for_sites").iterdir():
            shutil.copy(file, site / file.name)
    return Project.read(folder / "project"), sites


class InProcess:
    """A post to sites of this process. away: sites that are not connected. spoil: changes an answer on its way."""

    def __init__(self, sites, away=(), spoil=lambda site, data: data):
        self.parties = {n: site_party(SiteFolder.read(folder)) for n, folder in enumerate(sites)}
        self.away, self.spoil = set(away), spoil
        self.sent, self._letters = [], {}

    def connected(self):
        return self.parties.keys() - self.away

    def send(self, site, data):
        name = str(len(self.sent))
        self.sent.append((site, data))
        self._letters[name] = (name, site, self.spoil(site, self.parties[site].respond(data)))
        return name

    def collect(self, names):
        return [self._letters.pop(name) for name in names if name in self._letters]


def evaluated(site):
    """Evaluate at a site until it waits or is done; returns which."""
    folder = SiteFolder.read(site)
    while (phase := folder.evaluate_next(lambda x: tuned(folder.agent, x))) not in (WAITS, DONE):
        pass
    return phase


def played(project, sites, post, min_sites=None, clock=None, pace=Pace(again=0.0), turns=200):
    """Play a study to its end; returns the server's coordinator folder's ledger charges by round and digest."""
    server = server_party(project, min_sites)
    try:
        exchange = Exchange(server, post, pace, *([] if clock is None else [clock]))
        for _ in range(turns):
            for n in post.connected():
                evaluated(sites[n])
            if exchange.turn():
                break
        else:
            raise AssertionError(f"the study does not end: {exchange.state()}")
    finally:
        server.close()
    for n in post.connected():
        assert evaluated(sites[n]) == DONE
    return charged(project)


def charged(project):
    return [(c.round, c.digest, c.sigma) for c in dpfbo.Ledger(project.server / "ledger.jsonl").charges]


def configurations(site):
    """All configurations that a site was asked to evaluate, in their order."""
    with SiteFolder.read(site).opened() as agent:
        return [asked.configuration for asked in agent._asked]


def simulated(study, present):
    """The configurations by site, and the ledger, of a study in memory, whose server hears the sites `present`."""
    server, agents = dpfbo.Coordinator(study), [dpfbo.Agent(study, n) for n in range(study.n_agents)]
    found = [[] for _ in agents]

    def evaluate(n):
        found[n].append(agents[n].ask())
        agents[n].tell(found[n][-1], tuned(n, found[n][-1]))

    for n in present:
        for _ in range(study.n_init):
            evaluate(n)
    for t in range(study.broadcasts):
        for n in present:
            server.receive(n, agents[n].message())
        broadcast = server.release(t, missing_ok=True)
        for n in present:
            agents[n].receive(broadcast)
            evaluate(n)
    for n in present:
        for _ in range(study.rounds - study.broadcasts):
            evaluate(n)
    return found, [(c.round, c.digest, c.sigma) for c in server.ledger.charges]


def simulated_sum(study, present):
    """As `simulated`, of a study without a trusted server."""
    keys = [SiteKey.new() for _ in range(study.n_agents)]
    roster = Roster(tuple(key.public for key in keys))
    server, sites = SecureCoordinator(study, roster), [SecureSite(study, roster, key) for key in keys]
    found = [[] for _ in sites]

    def evaluate(n):
        found[n].append(sites[n].agent.ask())
        sites[n].agent.tell(found[n][-1], tuned(n, found[n][-1]))

    for n in present:
        for _ in range(study.n_init):
            evaluate(n)
    while not server.finished:
        for n, request in server.requests().items():
            if n in present:
                server.receive(n, sites[n].respond(request))
        if not server.finished:
            server.close_step()
    for n in present:
        for _ in range(study.rounds):
            evaluate(n)
    return found, [(c.round, c.digest, c.sigma) for c in server.ledger.charges]
