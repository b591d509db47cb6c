"""The exchange between server and sites: how often it asks, what it does when nothing comes, and what it says."""

import logging

import pytest

from dpfbo.formats.journal import StateError
from dpfbo.protocol.wire import WireError
from runners.deploy.exchange import Exchange, Pace


class Server:
    """Waits for one answer of each site in every step. few: too few answers close no step."""

    def __init__(self, sites, steps=1, few=0):
        self.sites, self.steps, self.few, self.got = sites, steps, few, {}

    @property
    def finished(self):
        return self.steps == 0

    def requests(self):
        return {} if self.finished else {n: b"%d" % self.steps for n in self.sites if n not in self.got}

    def receive(self, site, data):
        if data == b"bad":
            raise WireError("the bytes are bad")
        if data == b"late":
            raise StateError("it comes too late")
        if data != b"not ready":
            self.got[site] = data
            if self.got.keys() == set(self.sites):
                self.close_step()

    def close_step(self):
        if len(self.got) < self.few:
            raise StateError("they are too few")
        self.steps, self.got = self.steps - 1, {}


class Post:
    """Keeps what is sent; `answers` are handed over at the next turn."""

    def __init__(self, sites):
        self.sites, self.sent, self.answers = set(sites), [], []

    def connected(self):
        return self.sites

    def send(self, site, data):
        self.sent.append((site, data))
        return f"{len(self.sent) - 1}"

    def collect(self, names):
        found, self.answers = [a for a in self.answers if a[0] in names], []
        return found


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_site_is_asked_once_until_its_answer_counts_as_lost(clock):
    post = Post([0])
    exchange = Exchange(Server([0, 1]), post, Pace(again=5, lost=60), clock)
    for clock.now in (0.0, 1.0, 59.0):
        exchange.turn()
    assert post.sent == [(0, b"1")]
    clock.now = 60.0
    exchange.turn()
    assert post.sent == [(0, b"1")] * 2
    assert exchange.state() == {"awaited": [0, 1], "connected": [0]}


def test_an_answer_to_an_earlier_request_counts(clock):
    post, server = Post([0]), Server([0])
    exchange = Exchange(server, post, Pace(lost=60), clock)
    exchange.turn()
    clock.now = 61.0
    exchange.turn()
    post.answers = [("0", 0, b"yes")]
    assert exchange.turn() and exchange.state()["awaited"] == []


@pytest.mark.parametrize("answer", [b"not ready", b"bad", b"late", None])
def test_a_site_without_a_good_answer_is_asked_again(clock, caplog, answer):
    post = Post([0])
    exchange = Exchange(Server([0]), post, Pace(again=5, lost=60), clock)
    exchange.turn()
    post.answers = [("0", 0, answer)]
    with caplog.at_level(logging.WARNING):
        exchange.turn()
    words = {b"bad": "the bytes are bad", b"late": "it comes too late", None: "site 0 could not answer"}
    assert words.get(answer, "") in caplog.text and bool(caplog.text) == (answer in words)
    clock.now = 4.0
    exchange.turn()
    assert len(post.sent) == 1
    clock.now = 5.0
    exchange.turn()
    assert len(post.sent) == 2


def test_the_next_step_asks_at_once(clock):
    post = Post([0])
    exchange = Exchange(Server([0], steps=2), post, Pace(again=1000, lost=1000), clock)
    exchange.turn()
    post.answers = [("0", 0, b"yes")]
    exchange.turn()
    exchange.turn()
    assert post.sent == [(0, b"2"), (0, b"1")]


def test_a_step_ends_after_the_timeout_counted_from_the_last_progress(clock, caplog):
    post, server = Post([0, 1]), Server([0, 1, 2], few=2)
    exchange = Exchange(server, post, Pace(step_timeout=10), clock)
    exchange.turn()
    clock.now = 9.0
    post.answers = [("0", 0, b"yes")]
    exchange.turn()
    clock.now = 18.0
    exchange.turn()
    clock.now = 29.0
    exchange.turn()
    assert "they are too few" in caplog.text and not server.finished
    post.answers = [("1", 1, b"yes")]
    exchange.turn()
    clock.now = 35.0
    assert not exchange.turn()
    clock.now = 46.0
    assert exchange.turn() and exchange.state()["awaited"] == []
    assert "the step ends without the sites 2" in caplog.text


def test_without_a_timeout_the_server_waits_for_all(clock):
    server = Server([0, 1])
    exchange = Exchange(server, Post([0]), Pace(), clock)
    for clock.now in range(0, 10**7, 10**5):
        assert not exchange.turn()
