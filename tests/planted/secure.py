"""Sites of a secure sum with one fault each; all other code is inherited from the real ones."""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dpfbo.audit.secure.sums import SumTarget
from dpfbo.federated.distributed import DistributedGaussian
from dpfbo.privacy.distributed import DistributedNoise
from dpfbo.secure import primitives
from dpfbo.secure.messages import Advert, SumTerms, keyed, raw, site_list, text
from dpfbo.secure.site import SEALED, Masks, SumSite

N, M, DROPOUTS, COLLUDERS = 6, 40, 1, 1


def sound(site=SumSite, kind=DistributedGaussian, terms=SumTerms, max_dropouts=DROPOUTS, colluders=COLLUDERS, n=N):
    """Six sites, of which one may drop out and one may collude."""
    return SumTarget(kind(1.0, 1.0, 1.0, max_dropouts=max_dropouts, colluders=colluders), n, M, site, terms)


class AttemptlessTerms(SumTerms):
    """Terms in which keys of two attempts have the same purpose."""

    def purpose(self, attempt, *parts):
        return super().purpose(1, *parts)


class SameSeeds(SumSite):
    """A site that uses the three seeds of its first attempt in each one."""

    def __init__(self, *given):
        self.made, self.drawn = [], 0
        super().__init__(*given)

    def new_seed(self):
        self.drawn += 1
        if len(self.made) < 3:
            self.made.append(primitives.new_seed())
        return self.made[(self.drawn - 1) % 3]


def _bytes(payload, size):
    return np.frombuffer(raw(payload["masked"], 4 * size), "<u4")


class OnePairBare(SumSite):
    """Sites 1 and 3 share no mask."""

    def _masked(self, request):
        payload = super()._masked(request)
        other = {1: 3, 3: 1}.get(self.site)
        secret = self._secret(request.attempt)
        if other not in secret["shared"]:
            return payload
        U1 = bytes.fromhex(self._consent(secret, [])["keys"])
        masks = Masks(self._terms, request.attempt, U1, tuple(secret["shared"]))
        private = primitives.agreement_key(bytes.fromhex(secret["mask"]))
        public = Advert.of(secret["adverts"][str(other)]).mask
        bare = _bytes(payload, self._terms.size) - masks.of_pair(self.site, other, private, public)
        return {"masked": text(bare.tobytes())}


class VectorDrawnAgain(SumSite):
    """A site draws its vector when it masks, so that a restarted one masks another vector with the same keys."""

    def _masked(self, request):
        vector = (self._vector().numpy() % 2**32).astype("<u4").tobytes()
        self._keep_secret(request.attempt, {**self._secret(request.attempt), "vector": text(vector)})
        return super()._masked(request)


class ShortSeeds(SumSite):
    """Seeds are hashes of 32 bits."""

    def new_seed(self):
        return hashlib.sha256(os.urandom(4)).digest()[: primitives.SEED_BYTES]


class PaddedSeeds(SumSite):
    """Seeds are 64 bits, twice."""

    def new_seed(self):
        return 2 * os.urandom(primitives.SEED_BYTES // 2)


class SeedsOfTheirOwn(SumSite):
    """A site makes its keys of other seeds than those that it draws."""

    def _keys(self, request):
        super()._keys(request)
        secret = self._secret(request.attempt)
        self._keep_secret(request.attempt, {**secret, "mask": hashlib.sha256(os.urandom(4)).hexdigest()[:32]})
        return self._advert(request.attempt, self._secret(request.attempt)).payload()


class _Trusting:
    """The roster of a site that believes every signature."""

    def __init__(self, roster):
        self._roster = roster

    def __getattr__(self, name):
        return getattr(self._roster, name)

    def verify(self, site, signed, statement):
        pass


def _without_signatures(site, step, request):
    """The real step with a roster that believes every signature."""
    real = site._terms.roster
    object.__setattr__(site._terms, "roster", _Trusting(real))
    try:
        return step(request)
    finally:
        object.__setattr__(site._terms, "roster", real)


class UnsignedSurvivors(SumSite):
    """A site does not verify who signed the list of survivors."""

    def _unmask(self, request):
        return _without_signatures(self, super()._unmask, request)


class UnsignedKeys(SumSite):
    """A site does not verify who signed the keys."""

    def _shares(self, request):
        return _without_signatures(self, super()._shares, request)


class FewSignatures(SumSite):
    """One signature of a list of survivors is enough."""

    def _check_enough(self, least, sites, among, what):
        super()._check_enough(1 if what.startswith("signatures") else least, sites, among, what)


class FewSurvivors(SumSite):
    """A site signs any list of survivors, however short."""

    def _survivors(self, request):
        secret = self._secret(request.attempt)
        U3 = site_list(request.payload, "survivors", self._terms.noise.n_sites)
        self._keep_secret(request.attempt, {**secret, "survivors": U3})
        return self._consent(secret, U3)


class FewKeys(SumSite):
    """A site shares its seeds with however few sites have keys."""

    def _check_enough(self, least, sites, among, what):
        super()._check_enough(1 if what == "signed keys" else least, sites, among, what)


class BothShares(SumSite):
    """A site shows its shares of the key and of the mask of every survivor."""

    def _unmask(self, request):
        payload, secret = super()._unmask(request), self._secret(request.attempt)
        shares = {**secret["received"], str(self.site): secret["own"]}
        keys = {v: bytes.fromhex(shares[str(v)])[: primitives.SHARE_BYTES] for v in secret["survivors"]}
        return {**payload, "pair": {**payload["pair"], **keyed(keys)}}


class TwoLists(SumSite):
    """A site signs a second list of survivors after the first."""

    def respond(self, data):
        for step in ("survivors", "unmask"):
            if (1, "unmask") in self._done:
                self._done.pop((1, step), None)
        return super().respond(data)

    def _forget_old_secrets(self):
        pass


class MasksOfAnySites(SumSite):
    """Masks do not depend on the sites that share them."""

    def _masked(self, request):
        payload = super()._masked(request)
        secret = self._secret(request.attempt)
        U1 = bytes.fromhex(self._consent(secret, [])["keys"])
        private = primitives.agreement_key(bytes.fromhex(secret["mask"]))
        total = np.frombuffer(raw(secret["vector"], 4 * self._terms.size), "<u4")
        masks = Masks(self._terms, request.attempt, U1, tuple(range(N)))
        total = total + masks.own(self.site, bytes.fromhex(secret["self"]))
        for v in secret["shared"]:
            if v != self.site:
                public = Advert.of(secret["adverts"][str(v)]).mask
                total = total + masks.of_pair(self.site, v, private, public)
        assert len(payload) == 1
        return {"masked": text(total.astype("<u4").tobytes())}


class OneNonce(SumSite):
    """Shares are encrypted with a nonce of zeros, also by a restored copy."""

    def _shares(self, request):
        sealed = super()._shares(request)["shares"]
        secret = self._secret(request.attempt)
        adverts = {v: Advert.of(payload) for v, payload in secret["adverts"].items()}
        U1, nonce, sent = bytes.fromhex(self._consent({**secret, "shared": []}, [])["keys"]), bytes(12), {}
        for v, data in sealed.items():
            key = self._pair_key(request.attempt, secret, adverts[v], self.site, int(v))
            plain = primitives.opened(key, raw(data, SEALED), U1)
            sent[int(v)] = nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, U1)
        return {"shares": keyed(sent)}


class SilenceTold(SumSite):
    """An answer says whether the vector is zero."""

    def _masked(self, request):
        silent = not any(raw(self._secret(request.attempt)["vector"], 4 * self._terms.size))
        return {**super()._masked(request), **({"silent": "yes"} if silent else {})}


class ChargedLater(SumSite):
    """The vector leaves first."""

    def __init__(self, terms, key, journal, vector, charge, attempts=1):
        super().__init__(terms, key, journal, vector, lambda answer: None, attempts)
        self._later = charge

    def respond(self, data):
        answer = super().respond(data)
        if (self.attempt, "masked") in self._done:
            with suppress(OSError):
                self._later(answer)
        return answer


class VectorForgotten(SumSite):
    """Site 2 masks zeros."""

    def _masked(self, request):
        if self.site == 2:
            zeros = text(bytes(4 * self._terms.size))
            self._keep_secret(request.attempt, {**self._secret(request.attempt), "vector": zeros})
        return super()._masked(request)


@dataclass(frozen=True)
class SharesWithoutMargin(DistributedGaussian):
    """Every site adds the variance sigma^2 / N, as if all were there and honest."""

    def share(self, agent, n_agents, M, entropy, round):
        return DistributedNoise(n_agents).share(agent, self.scale(n_agents, M, round), M, entropy, round)


@dataclass(frozen=True)
class SharesOfPairs(DistributedGaussian):
    """Every second site has the noise of the site before."""

    def share(self, agent, n_agents, M, entropy, round):
        if agent % 2 == 0 or not hasattr(self, "last"):
            object.__setattr__(self, "last", super().share(agent, n_agents, M, entropy, round))
        return self.last


def sound_ones():
    """Sound sites, by name: no check may fail on them."""
    return {
        "sound sites": sound(),
        "sound, three sites, none may be missing": sound(max_dropouts=0, colluders=0, n=3),
        "sound, nine sites, three may be missing, two collude": sound(max_dropouts=3, colluders=2, n=9),
    }


def planted():
    """(name, words, target) of every fault of sites."""
    return [
        ("masks reused", "the second attempt has the masks of the first", sound(SameSeeds, terms=AttemptlessTerms)),
        ("one pair bare", "sites 1 and 3 share no mask", sound(OnePairBare)),
        ("no margin", "a noise share has only the variance sigma^2 / N", sound(kind=SharesWithoutMargin)),
        ("noise of two sites", "every second site has the noise of the site before", sound(kind=SharesOfPairs)),
        ("seeds of 32 bits", "seeds are hashes of 32 bits", sound(ShortSeeds)),
        ("seeds of 64 bits", "a seed is 64 bits, repeated", sound(PaddedSeeds)),
        ("seeds from elsewhere", "keys are made of other seeds than those drawn", sound(SeedsOfTheirOwn)),
        ("survivors unsigned", "signatures of the list are not verified", sound(UnsignedSurvivors)),
        ("one signature", "one site's signature of the list is enough", sound(FewSignatures)),
        ("few survivors", "fewer than N - max_dropouts survivors are accepted", sound(FewSurvivors)),
        ("few keys", "fewer than N - max_dropouts keys are accepted", sound(FewKeys)),
        ("keys unsigned", "signatures of keys are not verified", sound(UnsignedKeys)),
        ("second vector", "a restarted site masks another vector with the same key", sound(VectorDrawnAgain)),
        ("masks of any sites", "masks do not depend on which sites take part", sound(MasksOfAnySites)),
        ("one nonce", "a restored site encrypts other shares with one key and nonce", sound(OneNonce)),
        ("both shares", "a site reveals its shares of both seeds of every survivor", sound(BothShares)),
        ("two lists", "a site signs two lists of survivors, and helps to unmask a sum for each", sound(TwoLists)),
        ("silence told", "an answer says that a vector is zero", sound(SilenceTold)),
        ("charged later", "a masked vector leaves before it is charged", sound(ChargedLater)),
        ("vector forgotten", "site 2 masks zeros", sound(VectorForgotten)),
    ]
