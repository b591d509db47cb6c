"""The secure sum: the server learns the sum of the survivors' noisy vectors, whatever fails on the way."""

import base64
import json
from contextlib import suppress

import numpy as np
import pytest
import shamirs
import torch

from dpfbo.checks import SettingError
from dpfbo.formats.journal import Journal, StateError
from dpfbo.privacy.distributed import DistributedNoise
from dpfbo.secure import primitives
from dpfbo.secure.messages import STEPS, VERSION, ServerRequest, SiteAnswer, SumError, SumTerms, consent, keyed, text
from dpfbo.secure.roster import Roster, SiteKey, fingerprint
from dpfbo.secure.server import SumServer
from dpfbo.secure.site import Masks, SumSite

M = 7


class Sum:
    """A secure sum in one process; `vectors[n]` is site n's vector of the last attempt."""

    def __init__(self, n=5, max_dropouts=1, colluders=0, folder=None, attempts=1):
        self.keys = [SiteKey.new() for _ in range(n)]
        roster = Roster(tuple(key.public for key in self.keys))
        self.terms = SumTerms("study", 0, M, DistributedNoise(n, max_dropouts, colluders), roster)
        self.folder, self.attempts = folder, attempts
        self.charged, self.vectors = [[] for _ in range(n)], {}
        self.random = np.random.default_rng(0)
        self.journals = {n: self.journal(f"site{n}") for n in range(n)}
        self.sites = [self.site(n) for n in range(n)]
        self.server_journal = self.journal("server")
        self.server = SumServer(self.terms, self.server_journal)

    def journal(self, name):
        return Journal(self.folder and self.folder / name, "events.jsonl", {"event": "begin"})

    def site(self, n):
        def vector():
            self.vectors[n] = torch.from_numpy(self.random.integers(-(2**29), 2**29, M))
            return self.vectors[n]

        return SumSite(self.terms, self.keys[n], self.journals[n], vector, self.charged[n].append, self.attempts)

    def restart_site(self, n):
        if self.folder:
            self.journals[n].close()
            self.journals[n] = self.journal(f"site{n}")
        self.sites[n] = self.site(n)

    def restart_server(self):
        if self.folder:
            self.server_journal.close()
            self.server_journal = self.journal("server")
        self.server = SumServer(self.terms, self.server_journal)

    def do_step(self, absent=(), close=True):
        for n in self.server.waits_for:
            if n not in absent:
                self.server.receive(n, self.sites[n].respond(self.server.request(n)))
        if close:
            self.server.close_step()

    def until(self, step, absent=()):
        while self.server.step != step:
            self.do_step(absent)

    def request(self, step, payload, attempt=1):
        return ServerRequest(attempt, step, payload).encoded(self.terms)

    @property
    def expected(self):
        """The survivors' sum modulo 2^32, around 0."""
        total = sum(self.vectors[n] for n in self.server.survivors)
        return (total + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize(
    "absent",
    [{}, {"keys": [0]}, {"shares": [4]}, {"masked": [2]}, {"survivors": [1]}, {"unmask": [3]},
     {"keys": [1], "masked": [6], "survivors": [3]}, {"keys": [5], "shares": [2], "unmask": [0]}],
)  # fmt: skip
def test_the_server_learns_the_survivors_sum(absent):
    sum_ = Sum(n=9, max_dropouts=3)
    while sum_.server.step is not None:
        sum_.do_step(absent.get(sum_.server.step, ()))
    gone = {n for step in ("keys", "shares", "masked") for n in absent.get(step, ())}
    assert sum_.server.survivors == sorted(set(range(9)) - gone)
    assert torch.equal(sum_.server.total, sum_.expected)


@pytest.mark.parametrize("step", STEPS)
def test_too_few_answers_release_nothing(step):
    sum_ = Sum(n=9, max_dropouts=3)
    sum_.until(step)
    least = sum_.terms.enough[step]
    absent = sum_.server.waits_for[: len(sum_.server.waits_for) - least + 1]
    with pytest.raises(StateError, match=f"{least - 1} of 9 sites have answered step {step} and the sum needs {least}"):
        sum_.do_step(absent)
    with pytest.raises(StateError, match="is not known"):
        sum_.server.total  # noqa: B018
    sum_.do_step()  # those that were late come


def test_a_vector_is_charged_before_it_leaves_and_once():
    sum_ = Sum()
    sum_.until("masked")
    assert sum_.charged == [[]] * 5
    request = sum_.server.request(2)
    answer = sum_.sites[2].respond(request)
    assert sum_.charged[2] == [answer]
    assert sum_.sites[2].respond(request) == answer
    sum_.restart_site(2)
    assert sum_.sites[2].respond(request) == answer
    assert sum_.charged[2] == [answer]


def test_every_party_may_restart_between_any_two_calls(tmp_path):
    sum_ = Sum(folder=tmp_path)
    while sum_.server.step is not None:
        for n in sum_.server.waits_for:
            if (n, sum_.server.step) == (3, "masked"):
                continue
            request = sum_.server.request(n)
            sum_.restart_site(n)
            answer = sum_.sites[n].respond(request)
            sum_.restart_site(n)
            assert sum_.sites[n].respond(request) == answer
            sum_.server.receive(n, answer)
            sum_.restart_server()
            sum_.server.receive(n, answer)
        sum_.server.close_step()
        sum_.restart_server()
    assert torch.equal(sum_.server.total, sum_.expected)
    assert [len(charges) for charges in sum_.charged] == [1, 1, 1, 0, 1]
    assert not list(tmp_path.glob("site[0124]/*.secret")), "secrets are gone with their attempt"


def test_a_site_killed_before_its_answer_was_noted_gives_the_same_vector():
    sum_ = Sum()
    sum_.until("masked")
    first = sum_.sites[1].respond(sum_.server.request(1))
    sum_.journals[1].events.pop()  # as if the last line had not reached the disk
    sum_.restart_site(1)
    assert sum_.sites[1].respond(sum_.server.request(1)) == first
    assert sum_.charged[1] == [first, first]  # the ledger counts equal bytes once


def test_masked_vectors_are_masked():
    """No vector is seen: without the other masks, a masked one is uniform."""
    sum_ = Sum()
    sum_.until("masked")
    sum_.do_step(close=False)
    for n in range(5):
        event = SiteAnswer.decoded(sum_.sites[n].respond(sum_.server.request(n)), sum_.terms)[0]
        assert event.payload["masked"] != text((sum_.vectors[n].numpy() % 2**32).astype("<u4").tobytes())


def test_another_attempt_has_other_keys_and_noise_and_needs_consent():
    sum_ = Sum(attempts=2)
    sum_.until("survivors")
    first = dict(sum_.vectors)
    sum_.server.begin_again()
    sum_.restart_server()
    assert (sum_.server.attempt, sum_.server.step) == (2, "keys")
    sum_.until(None)
    assert torch.equal(sum_.server.total, sum_.expected)
    assert all(not torch.equal(first[n], sum_.vectors[n]) for n in range(5))
    assert [len(charges) for charges in sum_.charged] == [2] * 5
    with pytest.raises(StateError, match="asks for attempt 3, and this site allows 2"):
        sum_.sites[0].respond(sum_.request("keys", {}, attempt=3))
    with pytest.raises(StateError, match="attempt 1 is over"):
        sum_.sites[0].respond(sum_.request("unmask", {"signatures": {}}, attempt=1))


def test_a_site_restored_from_an_older_copy_does_not_mask_again():
    sum_ = Sum()
    old = Journal(None, "events.jsonl", {"event": "begin"})
    sum_.until("shares")
    sum_.journals[2] = old  # the copy was made before the sum began
    sum_.restart_site(2)
    sum_.sites[2].respond(sum_.request("keys", {}))  # other keys than those that the server has
    with pytest.raises(SumError, match="the server has other keys of this site: the site's folder is an older copy"):
        sum_.sites[2].respond(sum_.server.request(2))
    with pytest.raises(StateError, match="needs the answer to step shares"):
        sum_.sites[2].respond(sum_.request("masked", {"shares": {}}))


def test_a_site_restored_from_a_copy_with_keys_masks_the_same_vector():
    sum_ = Sum()
    sum_.until("masked")
    journal = sum_.journals[2]
    copy = journal.copied()
    request, vector = sum_.server.request(2), sum_.vectors[2]
    first = sum_.sites[2].respond(request)
    sum_.journals[2] = copy
    sum_.restart_site(2)
    assert sum_.sites[2].respond(request) == first
    assert sum_.vectors[2] is vector  # nothing was drawn anew


# a server that does not follow the protocol


def test_another_request_of_a_step_is_refused():
    sum_ = Sum()
    sum_.until("survivors")
    sum_.sites[0].respond(sum_.request("survivors", {"survivors": [0, 1, 2, 3]}))
    with pytest.raises(StateError, match="another request of step survivors of attempt 1 was answered"):
        sum_.sites[0].respond(sum_.request("survivors", {"survivors": [0, 1, 2, 3, 4]}))


def test_two_lists_of_survivors_do_not_get_both_kinds_of_shares():
    """The attack against which sites sign the list: one site is a survivor for some and gone for others."""
    sum_ = Sum(n=5, max_dropouts=1)
    sum_.until("survivors")
    lists = {n: [0, 1, 2, 3, 4] if n < 3 else [0, 1, 2, 3] for n in range(5)}
    signed = {}
    for n, site in enumerate(sum_.sites):
        answer = site.respond(sum_.request("survivors", {"survivors": lists[n]}))
        signed[n] = SiteAnswer.decoded(answer, sum_.terms)[1]
    for n, site in enumerate(sum_.sites):
        with pytest.raises(SumError, match="signature is not of the site|a sum needs 3 signatures"):
            mine = {v: s for v, s in signed.items() if v in lists[n]}
            site.respond(sum_.request("unmask", {"signatures": keyed(mine)}))
        if n < 3:  # three sites signed the long list, which is enough for it, and for it alone
            continue
        same = {v: s for v, s in signed.items() if lists[v] == lists[n]}
        with pytest.raises(SumError, match="a sum needs 3 signatures"):
            site.respond(sum_.request("unmask", {"signatures": keyed(same)}))


def test_unsigned_survivors_do_not_count():
    sum_ = Sum()
    sum_.until("unmask")
    with pytest.raises(SumError, match="a signature is not of the site in the roster"):
        sum_.sites[0].respond(sum_.request("unmask", {"signatures": keyed(dict.fromkeys(range(5), bytes(64)))}))


def test_few_survivors_are_refused_because_their_noise_is_too_small():
    sum_ = Sum(n=9, max_dropouts=2)
    sum_.until("survivors")
    with pytest.raises(SumError, match="a sum needs 7 survivors"):
        sum_.sites[0].respond(sum_.request("survivors", {"survivors": [0, 1, 2, 3, 4, 5]}))


def test_keys_that_no_site_of_the_roster_signed_are_refused():
    sum_ = Sum()
    sum_.until("shares")
    body = json.loads(sum_.server.request(0)[len(VERSION) :])
    adverts = body["payload"]["adverts"]
    with pytest.raises(SumError, match="a signature is not of the site in the roster"):
        sum_.sites[0].respond(sum_.request("shares", {"adverts": {**adverts, "1": [adverts["2"][0], adverts["1"][1]]}}))
    with pytest.raises(SumError, match="a sum needs 4 signed keys"):
        sum_.sites[0].respond(sum_.request("shares", {"adverts": {n: adverts[n] for n in "012"}}))


def test_shares_for_another_site_or_other_keys_are_refused():
    sum_ = Sum()
    sum_.until("masked")
    shares = {n: json.loads(sum_.server.request(n)[len(VERSION) :])["payload"]["shares"] for n in range(2)}
    swapped = {**shares[0], "2": shares[1]["2"]}
    with pytest.raises(SumError, match="cannot be opened"):
        sum_.sites[0].respond(sum_.request("masked", {"shares": swapped}))


def test_wrong_shares_of_a_site_are_found():
    sum_ = Sum()
    sum_.until("unmask")
    sum_.do_step(close=False)
    answer = sum_.server._answers["unmask"][1]
    answer.payload["self"]["4"] = text(bytes(17))
    with pytest.raises(StateError, match="the shares for .* are wrong: nothing is released"):
        sum_.server.close_step()
    assert sum_.server.step == "unmask"


def test_sites_that_were_shown_another_list_are_refused_by_the_server():
    sum_ = Sum()
    sum_.until("survivors")
    payload = consent(bytes(32), [0, 1], [0])
    forged = SiteAnswer(1, "survivors", payload, 2).signed(sum_.terms, sum_.keys[2])
    with pytest.raises(SumError, match="site 2 must sign the keys, shares and survivors that it was shown"):
        sum_.server.receive(2, forged)


# bytes


def test_the_server_takes_only_what_the_site_signed():
    sum_ = Sum()
    answer = sum_.sites[1].respond(sum_.server.request(1))
    with pytest.raises(StateError, match="the answer is of site 1, and site 2 sent it"):
        sum_.server.receive(2, answer)
    with pytest.raises(SumError, match="must have its signature"):
        sum_.server.receive(1, SiteAnswer.decoded(answer, sum_.terms)[0].signed(sum_.terms, sum_.keys[2]))
    sum_.server.receive(1, answer)
    sum_.server.receive(1, answer)
    assert sum_.server.answered == [1]
    payload = SiteAnswer.decoded(sum_.sites[2].respond(sum_.server.request(2)), sum_.terms)[0].payload
    with pytest.raises(StateError, match="site 1 has sent another answer to step keys"):
        sum_.server.receive(1, SiteAnswer(1, "keys", payload, 1).signed(sum_.terms, sum_.keys[1]))


def test_damaged_bytes_get_one_sentence():
    sum_ = Sum()
    sum_.until("shares")
    request = sum_.server.request(0)
    answer = sum_.sites[1].respond(sum_.server.request(1))
    random = np.random.default_rng(1)
    for data, read in ((request, sum_.sites[0].respond), (answer, lambda bytes_: sum_.server.receive(1, bytes_))):
        for _ in range(150):
            damaged = bytearray(data)
            damaged[random.integers(len(data))] ^= 1 << random.integers(8)
            with pytest.raises((SumError, StateError)):
                read(bytes(damaged))
            with pytest.raises(SumError):
                read(data[: random.integers(len(data))])
    for text_ in (b"", b"{}", b"[1]", b'{"a": NaN}', b"[" * 100_000, b'{"payload": 1}'):
        with pytest.raises(SumError):
            sum_.sites[0].respond(VERSION + text_)


def test_bytes_of_another_study_roster_or_attempt_are_refused():
    one, other = Sum(), Sum()
    with pytest.raises(SumError, match="the message must be of roster"):
        one.sites[0].respond(other.server.request(0))
    with pytest.raises(SumError, match="must have at most"):
        one.sites[0].respond(one.request("keys", {"more": "x" * 100_000}))


def test_a_roster_has_one_key_a_site(tmp_path):
    keys = [SiteKey.new().public for _ in range(3)]
    Roster(tuple(keys)).save(tmp_path / "roster.json")
    assert Roster.load(tmp_path / "roster.json").keys == tuple(keys)
    with pytest.raises(SettingError, match="roster must have a key of its own for site 2, got that of site 0"):
        Roster((*keys[:2], keys[0]))
    with pytest.raises(SettingError, match="roster must have 64 hexadecimal digits for site 0"):
        Roster(("12",))
    (tmp_path / "roster.json").write_text("[]")
    with pytest.raises(StateError, match="must be a roster"):
        Roster.load(tmp_path / "roster.json")
    with pytest.raises(StateError, match="the roster has no site with the key"):
        Roster(tuple(keys)).number_of(SiteKey.new())


def test_a_private_key_is_read_by_its_owner_alone(tmp_path):
    key = SiteKey.new()
    key.save(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    assert SiteKey.load(tmp_path / "key") == key
    assert key.private.hex() not in repr(key)
    with pytest.raises(StateError, match="exists already"):
        key.save(tmp_path / "key")
    (tmp_path / "key").write_text("zz")
    with pytest.raises(StateError, match="must hold a site's private key"):
        SiteKey.load(tmp_path / "key")
    assert len(fingerprint(key.public).split()) == 8


def test_shares_below_the_threshold_say_nothing_of_the_seed():
    seed = primitives.new_seed()
    shares = dict(enumerate(primitives.shares(seed, 3, 5)))
    for sites in ((0, 2, 4), (1, 2, 3)):
        points = [shamirs.share(v + 1, int.from_bytes(shares[v], "big"), 2**130 - 5) for v in sites]
        assert primitives.combined(shares, primitives.coefficients(sites)) == seed
        assert shamirs.interpolate(points) == int.from_bytes(seed, "big")
    with suppress(primitives.BadSignature):
        assert primitives.combined(shares, primitives.coefficients((0, 1))) != seed


def test_masks_of_pairs_cancel_and_differ_between_attempts():
    terms = Sum().terms
    first, second, fewer = (Masks(terms, k, b"keys", U2) for k, U2 in ((1, (0, 1, 3)), (2, (0, 1, 3)), (1, (0, 3))))
    a, b = (primitives.agreement_key(primitives.new_seed()) for _ in range(2))
    A, B = map(primitives.public_agreement_key, (a, b))
    mine, other = first.of_pair(0, 3, a, B), first.of_pair(3, 0, b, A)
    assert not (mine + other).any()
    assert all((mine != masks.of_pair(0, 3, a, B)).any() for masks in (second, fewer))
    assert (first.own(0, a) != fewer.own(0, a)).any()


def masked(sum_, n, others):
    """The masked vector of a copy of site n among some others, as uint32."""
    shares = json.loads(sum_.server.request(n)[len(VERSION) :])["payload"]["shares"]
    request = sum_.request("masked", {"shares": {v: shares[str(v)] for v in map(str, others)}})
    copy = SumSite(sum_.terms, sum_.keys[n], sum_.journals[n].copied(), lambda: None, lambda answer: None)
    answer, _ = SiteAnswer.decoded(copy.respond(request), sum_.terms)
    return np.frombuffer(base64.b64decode(answer.payload["masked"]), "<u4")


def test_copies_that_mask_among_other_sites_do_not_bare_the_masks_of_pairs():
    """Copies of two sites that each leave the other out would show the mask that both share."""
    sum_ = Sum(n=5, max_dropouts=1)
    sum_.until("masked")
    first = masked(sum_, 0, [1, 2, 3, 4]) - masked(sum_, 0, [2, 3, 4])
    second = masked(sum_, 1, [0, 2, 3, 4]) - masked(sum_, 1, [2, 3, 4])
    assert (first + second).any()
    assert (masked(sum_, 0, [1, 2, 3, 4]) == masked(sum_, 0, [1, 2, 3, 4])).all()


def test_a_copy_that_shares_again_uses_no_key_stream_twice():
    """Shares have 130 of 136 bits, so equal key streams would leave six zeros in the difference of two ciphertexts."""
    sum_ = Sum()
    sum_.until("shares")
    request, sent = sum_.server.request(0), []
    for _ in range(2):
        copy = SumSite(sum_.terms, sum_.keys[0], sum_.journals[0].copied(), lambda: None, lambda answer: None)
        answer, _ = SiteAnswer.decoded(copy.respond(request), sum_.terms)
        sent.append({v: base64.b64decode(share) for v, share in answer.payload["shares"].items()})
    one, two = sent
    assert all(one[v][: primitives.NONCE_BYTES] != two[v][: primitives.NONCE_BYTES] for v in one)
    body = primitives.NONCE_BYTES
    assert any((one[v][body + k] ^ two[v][body + k]) & 0xFC for v in one for k in (0, primitives.SHARE_BYTES))
