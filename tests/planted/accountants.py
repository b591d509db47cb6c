"""Accountants with one fault each, all of them variants of `Pld`."""

from dp_accounting.pld import privacy_loss_distribution as pld

from dpfbo.privacy.accounting import sampled_gaussian
from dpfbo.privacy.accounting.pld import Pld

_INTERVAL = 1e-3  # of the discretised loss


class Optimistic(Pld):
    """Epsilon is 2 % too small."""

    def epsilon(self, events, delta):
        return 0.98 * super().epsilon(events, delta)

    def curve(self, events, delta):
        return [0.98 * epsilon for epsilon in super().curve(events, delta)]


class OneRoundShort(Pld):
    """The last round of several is left out."""

    def epsilon(self, events, delta):
        return super().epsilon(events[: max(1, len(events) - 1)], delta)

    def curve(self, events, delta):
        found = super().curve(events, delta)
        return [found[0], *found[:-1]]


class AnotherDelta(Pld):
    """Epsilon is that at twice the delta."""

    def epsilon(self, events, delta):
        return super().epsilon(events, 2 * delta)

    def curve(self, events, delta):
        return super().curve(events, 2 * delta)


class OneSided(Pld):
    """Only the loss of the run without the message against the one with it counts."""

    def epsilon(self, events, delta):
        total = pld.identity(_INTERVAL)
        for event in events:
            q, z = sampled_gaussian(event)
            one = pld.from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=_INTERVAL)
            total = total.compose(pld.PrivacyLossDistribution(one._pmf_add))
        return float(total.get_epsilon_for_delta(delta))

    def curve(self, events, delta):
        return [self.epsilon(events[: k + 1], delta) for k in range(len(events))]


class OptimisticCurve(Pld):
    """The curve alone, from which records are made, is one round short."""

    def curve(self, events, delta):
        return [0.0, *super().curve(events, delta)[:-1]]
