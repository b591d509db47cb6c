"""Checks that the sites of a secure sum withstand a malicious server.

The server may send any request. It may also replace a site's folder with an older copy.
"""

import numpy as np

from dpfbo.audit.findings import ClaimBroken, require
from dpfbo.audit.secure.sums import SumRun, SumTarget
from dpfbo.secure import primitives
from dpfbo.secure.messages import VERSION, keyed, raw
from dpfbo.secure.site import SEALED, SumSite

_RESTORED = 2  # copies restored from one folder
_UNUSED = 0xFC  # bits of a share's first byte that are always zero: a share has 130 bits in 17 bytes


def signed_survivors(target: SumTarget) -> str:
    """Check that a site refuses to unmask a sum until `threshold` sites have signed the site's list of survivors.

    Survivors are sites whose masked vectors the server has received.
    """
    run, tried = SumRun(target).until("unmask"), 0
    for n in range(target.n_sites):
        good = run.payload(n)["signatures"]
        few = {v: good[v] for v in sorted(good)[: target.noise.threshold - 1]}
        other = {**good, "0": good["1"]}
        forged = keyed(dict.fromkeys(range(target.n_sites), bytes(primitives.SIGNATURE_BYTES)))
        lists = {"without signatures": {}, "that nobody signed": forged, "that too few sites signed": few,
                 "with a signature of another site": other}  # fmt: skip
        for words, signatures in lists.items():
            run.must_refuse(n, "unmask", {"signatures": signatures}, f"a list of survivors {words}")
            tried += 1
    return f"{tried + _two_lists(target)} lists of survivors are refused"


def _two_lists(target: SumTarget) -> int:
    """Check that no site helps to unmask after a server has sent two different lists of survivors to be signed.

    Half of the sites sign the first list, the others sign the second. Return the number of sites, or 0 if no site may
    drop out.
    """
    if not target.noise.max_dropouts:
        return 0
    run, N = SumRun(target).until("survivors"), target.n_sites
    lists = [list(range(N)) if n < N / 2 else list(range(N - 1)) for n in range(N)]
    signed = {}
    for n in range(N):
        answer = run.answer(n, "survivors", {"survivors": lists[n]})
        if answer is None:
            raise ClaimBroken(f"site {n} does not sign a list of enough survivors")
        signed[n] = answer[len(VERSION) :][: primitives.SIGNATURE_BYTES]
    for n in range(N):
        mine = keyed({v: signature for v, signature in signed.items() if v in lists[n]})
        run.must_refuse(n, "unmask", {"signatures": mine}, "a list of survivors although some sites signed another one")
    return N


def enough_sites(target: SumTarget) -> str:
    """Check that no site goes on with fewer than N - max_dropouts of the N sites."""
    least, N = target.noise.survivors, target.n_sites
    run = SumRun(target).until("shares")
    for n in range(N):
        few = [n, *(v for v in range(N) if v != n)][: least - 1]
        adverts = run.payload(n)["adverts"]
        run.must_refuse(n, "shares", {"adverts": {str(v): adverts[str(v)] for v in few}}, f"{least - 1} keys only")
    run.until("masked")
    for n in range(N):
        sent = run.payload(n)["shares"]
        few = sorted(sent)[: least - 2]  # the site itself is one more
        run.must_refuse(n, "masked", {"shares": {v: sent[v] for v in few}}, f"the shares of {least - 1} sites")
    run.until("survivors")
    for n in range(N):
        run.must_refuse(n, "survivors", {"survivors": list(range(least - 1))}, f"a list of {least - 1} survivors")
    return f"{least - 1} sites are refused in three steps, {least} are enough"


def signed_keys(target: SumTarget) -> str:
    """Check that no site uses keys that their owner has not signed, so that the server cannot pose as a site."""
    run, N = SumRun(target).until("shares"), target.n_sites
    other = SumRun(target).until("shares")
    for n in range(N):
        adverts, v = run.payload(n)["adverts"], str((n + 1) % N)
        own, foreign = adverts[v], other.payload(n)["adverts"][v]
        run.must_refuse(
            n, "shares", {"adverts": {**adverts, v: [foreign[0], own[1]]}}, "keys with the signature of other keys"
        )
        run.must_refuse(n, "shares", {"adverts": {**adverts, v: foreign}}, "keys signed by a site of another roster")
        mine = {**adverts, str(n): other.payload(n)["adverts"][str(n)]}
        run.must_refuse(n, "shares", {"adverts": mine}, "a list in which its own keys are replaced")
    return f"{3 * N} keys that a site of the roster did not sign are refused"


def one_vector(target: SumTarget) -> str:
    """Check that a key masks only one vector, even after a site is restarted or restored from a copy.

    If the same secret shares arrive again, the site must send the same masked vector.

    A site adds one pair mask for each other site whose secret shares have arrived. After site n is restored, the server
    may withhold the shares of site v, so that n leaves out the mask of the pair (n, v). Site n must then use new masks.
    With the old masks, the difference of n's two masked vectors would reveal the mask of this pair.
    """
    run, N = SumRun(target).until("masked"), target.n_sites
    copies = [journal.copied() for journal in run.journals]
    given = [run.payload(n)["shares"] for n in range(N)]
    sent = [_masked(run, n, given[n], run.sites[n]) for n in range(N)]
    for n in range(N):
        for journal in (run.journals[n], copies[n].copied()):
            again = _masked(run, n, given[n], run.site(n, journal))
            words = f"site {n} masks another vector with the same keys when it is restarted or restored"
            require(bool((again == sent[n]).all()), words)
    words = f"{2 * N} restarted and restored sites mask the same vectors"
    if not target.noise.max_dropouts:
        return words
    for n in range(N):
        pair, total = (n, (n + 1) % N), np.zeros(run.terms.size, np.uint32)
        for a, b in (pair, pair[::-1]):
            others = {v: share for v, share in given[a].items() if v != str(b)}
            total = total + sent[a] - _masked(run, a, others, run.site(a, copies[a].copied()))
        require(bool(total.any()), f"copies of sites {pair[0]} and {pair[1]} show the mask that both share")
    return words + ", and use other masks if a site is left out"


def _masked(run: SumRun, n: int, shares: dict[str, str], site: SumSite) -> np.ndarray:
    """Return the masked vector that `site` sends after it receives `shares`. site: site n, or a copy of site n."""
    answer = run.answer(n, "masked", {"shares": shares}, site)
    if answer is None:
        raise ClaimBroken(f"site {n} does not mask among {len(shares) + 1} sites")
    return run.masked(run.read(answer))


def key_streams(target: SumTarget) -> str:
    """Check that two restored copies of a site do not encrypt different secret shares with the same key stream."""
    run, N, zeros, looked = SumRun(target).until("shares"), target.n_sites, 0, 0
    for n in range(N):
        sent = []
        for _ in range(_RESTORED):
            answer = run.answer(n, "shares", run.payload(n), run.restored(n))
            if answer is None:
                raise ClaimBroken(f"site {n} sends no shares to an honest server")
            sent.append(run.read(answer).payload["shares"])
        for v in sent[0]:
            one, two = (raw(payload[v], SEALED)[primitives.NONCE_BYTES :] for payload in sent)
            if one == two:
                continue  # the same bytes reveal nothing new
            for k in (0, primitives.SHARE_BYTES):
                looked += 1
                zeros += not (one[k] ^ two[k]) & _UNUSED
    words = f"{zeros} of {looked} pairs of shares have equal unused bits"
    return require(zeros < looked or looked == 0, words)


def one_share_each(target: SumTarget) -> str:
    """Check that a site shows one share of each survivor's mask and of each missing site's key, but no other share.

    Afterwards, the site must refuse every list of survivors that differs from the first.
    """
    noise, N = target.noise, target.n_sites
    gone = list(range(noise.max_dropouts))
    run = SumRun(target).until("masked").until("unmask", absent=gone)
    alive = run.server.survivors
    for n in run.server.waits_for:
        answer = run.answer(n, "unmask", run.payload(n))
        if answer is None:
            raise ClaimBroken(f"site {n} does not help to unmask an honest sum")
        payload = run.read(answer).payload
        require(set(payload) == {"self", "pair"}, f"site {n} shows {', '.join(sorted(payload))}, not just shares")
        shown = {name: sorted(map(int, payload[name])) for name in payload}
        both = set(shown["self"]) & set(shown["pair"])
        require(not both, f"site {n} shows shares of both seeds of {len(both)} sites")
        right = shown == {"self": alive, "pair": gone}
        require(right, f"site {n} shows shares of other sites than survivors and missing ones")
        if gone:
            other = {"survivors": list(range(noise.survivors))}
            run.must_refuse(n, "survivors", other, "another list of survivors, after it has unmasked one")
    return f"{len(alive)} sites show one share for each of {N} sites"


def charged_first(target: SumTarget) -> str:
    """Check that a masked vector leaves only after its charge is written to the ledger."""
    run = SumRun(target).until("masked")
    for n in range(target.n_sites):
        charges: list[bytes] = []
        answer = run.answer(n, "masked", run.payload(n), run.restored(n, charges.append))
        require(charges == [answer], f"site {n} sends a masked vector that it did not charge")
        try:
            left = run.answer(n, "masked", run.payload(n), run.restored(n, _unwritable))
        except OSError:
            left = None
        require(left is None, f"site {n} sends a masked vector although its ledger cannot be written")
    return f"{target.n_sites} masked vectors are charged first"


def _unwritable(answer: bytes) -> None:
    raise OSError("the ledger cannot be written")
