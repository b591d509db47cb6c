"""The private mechanism: its release, the influence of one agent on it, and hostile messages."""

import math

import dp_accounting
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpfbo.federated.mechanism import SubsampledGaussian, WeightedAverage
from dpfbo.federated.messages import accept, clip
from dpfbo.federated.weights import normalised
from dpfbo.federated.weights.decay import Decay
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
from dpfbo.privacy.ledger import digest
from dpfbo.rng import Streams

N, P, M = 12, 3, 7
ENTROPY = SeededEntropy(Streams(5))
ASSIGNMENT = torch.arange(N) % P


def messages(seed=0, scale=1.0, n=N):
    return scale * torch.randn(n, M, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def weights(round=0, n=N, p=P):
    return Softmax(Decay(10, 30))(round, torch.arange(n) % p, p)


def release(mechanism, sent, w=None, round=0, entropy=ENTROPY):
    """The release alone."""
    return both(mechanism, sent, w, round, entropy)[0]


def both(mechanism, sent, w=None, round=0, entropy=ENTROPY):
    """A release and its diagnostics."""
    return mechanism.release(sent, weights() if w is None else w, M, entropy, round)


def test_divides_by_q_and_not_by_the_size_of_the_subset():
    """Unbiased: the mean over rounds is the weighted sum of the clipped messages; within 4.5 SE for all 21 numbers."""
    mechanism, sent, w = SubsampledGaussian(0.3, 0.0, 2.0), messages(), weights(20)
    rounds = torch.stack([release(mechanism, sent, w, t).values for t in range(4000)])
    expected = w @ clip(sent, 2.0 / math.sqrt(P))[0]
    z = (rounds.mean(0) - expected) / (rounds.std(0) / 4000**0.5)
    assert z.abs().max() < 4.5


def test_a_single_chosen_agent_is_weighed_by_phi_over_q():
    mechanism, sent, w = SubsampledGaussian(0.25, 0.0, 1e6), messages(), weights(20)
    for t in range(200):
        chosen = mechanism.choose(N, ENTROPY, t)
        values = release(mechanism, sent, w, t).values
        assert torch.allclose(values, (w[:, chosen] / 0.25) @ sent[chosen])


@given(
    st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=M, max_size=M),
        min_size=1,
        max_size=5,
    ),
    st.floats(1e-6, 1e6),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_clip_bounds_the_norm_and_keeps_the_direction(rows, norm):
    sent = torch.tensor(rows, dtype=torch.float64)
    clipped, n_clipped = clip(sent, norm)
    lengths = [math.hypot(*row) for row in clipped.tolist()]
    assert max(lengths) <= norm * (1 + 1e-12)
    for before, after, length in zip(sent, clipped, lengths, strict=True):
        largest = before.abs().max()
        if largest == 0 or math.hypot(*before.tolist()) <= norm * (1 - 1e-12):
            assert torch.equal(before, after)
        elif largest > 1e-290:
            assert length >= norm * (1 - 1e-12)
            unit = before / largest
            assert torch.allclose(after / length, unit / unit.norm(), atol=1e-9)
    assert n_clipped <= len(rows)


@pytest.mark.parametrize("calibration", ["paper", "tight"])
@pytest.mark.parametrize("round", [0, 15, 45])
def test_sensitivity_bounds_what_one_agent_can_do(calibration, round):
    """Zeroing any agent's message, all else equal, moves the joint sum by at most sensitivity()."""
    mechanism, w = SubsampledGaussian(0.4, 0.0, 2.0, calibration), weights(round)
    sent = messages(scale=100.0)
    everyone = next(t for t in range(10_000) if bool(mechanism.choose(N, ENTROPY, t)[:1].all()))
    worst = 0.0
    for n in range(N):
        t = next(t for t in range(everyone, 10_000) if bool(mechanism.choose(N, ENTROPY, t)[n]))
        without = sent.clone()
        without[n] = 0
        moved = (release(mechanism, sent, w, t).values - release(mechanism, without, w, t).values).norm()
        worst = max(worst, float(moved))
    assert worst <= mechanism.sensitivity(w) * (1 + 1e-12)
    if calibration == "tight":
        assert worst == pytest.approx(mechanism.sensitivity(w))


@pytest.mark.parametrize("round", range(0, 60, 6))
def test_tight_is_at_most_paper_is_at_most_sqrt_P_tight(round):
    w = weights(round)
    paper, tight = (SubsampledGaussian(0.4, 1.0, 2.0, c).sensitivity(w) for c in ("paper", "tight"))
    assert tight <= paper * (1 + 1e-12)
    assert paper <= math.sqrt(P) * tight * (1 + 1e-12)


def test_sensitivities_in_closed_form():
    uniform = normalised(1.0, 1.0, ASSIGNMENT, P)
    assert SubsampledGaussian(0.5, 1.0, 3.0, "paper").sensitivity(uniform) == pytest.approx(3.0 / N / 0.5)
    assert SubsampledGaussian(0.5, 1.0, 3.0, "tight").sensitivity(uniform) == pytest.approx(3.0 / N / 0.5)
    own = normalised(1.0, 0.0, ASSIGNMENT, P)  # 4 agents a region
    assert SubsampledGaussian(0.5, 1.0, 3.0, "paper").sensitivity(own) == pytest.approx(3.0 / 4 / 0.5)
    assert SubsampledGaussian(0.5, 1.0, 3.0, "tight").sensitivity(own) == pytest.approx(3.0 / math.sqrt(P) / 4 / 0.5)


@pytest.mark.parametrize("calibration", ["paper", "tight"])
@pytest.mark.parametrize("entropy", [ENTROPY, SystemEntropy()], ids=["seeded", "system"])
def test_noise_has_the_promised_law(calibration, entropy):
    mechanism, w = SubsampledGaussian(0.5, 1.7, 2.0, calibration), weights(12)
    silent = [None] * N
    sample = torch.stack([release(mechanism, silent, w, t, entropy).values for t in range(1000)]).flatten()
    sigma = 1.7 * mechanism.sensitivity(w)
    assert release(mechanism, silent, w).sigma == pytest.approx(sigma)
    assert stats.kstest(sample.numpy() / sigma, "norm").pvalue > 1e-4
    assert abs(float((sample**2).mean()) / sigma**2 - 1) < 4.5 * math.sqrt(2 / len(sample))
    blocks = sample.view(1000, P * M)
    correlation = torch.corrcoef(blocks.T) - torch.eye(P * M, dtype=torch.float64)
    assert correlation.abs().max() < 5 / 1000**0.5


def test_empty_subset_releases_the_same_noise():
    mechanism = SubsampledGaussian(1e-9, 1.0, 2.0)
    out, private = both(mechanism, messages())
    assert private.n_chosen == 0
    assert private.signal == 0
    full, _ = SubsampledGaussian(1e-9, 1.0, 2.0).release([None] * N, weights(), M, ENTROPY, 0)
    assert torch.equal(out.values, full.values)


BAD = {
    "nan": torch.full((M,), math.nan, dtype=torch.float64),
    "one nan": torch.tensor([1.0, math.nan, 0, 0, 0, 0, 0], dtype=torch.float64),
    "inf": torch.full((M,), -math.inf, dtype=torch.float64),
    "short": torch.ones(M - 1, dtype=torch.float64),
    "long": torch.ones(M + 1, dtype=torch.float64),
    "matrix": torch.ones(1, M, dtype=torch.float64),
    "scalar": torch.tensor(3.0),
    "lost": None,
    "not a tensor": "hello",
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize(
    "make", [lambda: SubsampledGaussian(1.0, 1.0, 2.0), WeightedAverage], ids=["private", "average"]
)
def test_unusable_messages_count_as_zero_bit_for_bit(make, kind):
    good = list(messages())
    hostile, zeroed = list(good), list(good)
    for n in (0, 5):
        hostile[n], zeroed[n] = BAD[kind], torch.zeros(M, dtype=torch.float64)
    (out, private), (expected, of_zeroed) = both(make(), hostile), both(make(), zeroed)
    assert torch.equal(out.values, expected.values)
    assert private.n_rejected == 2
    assert of_zeroed.n_rejected == 0


def test_whole_tensor_of_a_wrong_shape_is_rejected_message_by_message():
    for sent in (torch.ones(N, M + 1), torch.ones(N - 2, M + 1), torch.ones(N), torch.ones(0, M + 1)):
        received, rejected = accept(sent, torch.arange(N), M)
        assert rejected == N
        assert not received.any()


def test_a_tensor_with_too_few_rows_loses_the_absent_agents_only():
    received, rejected = accept(messages(n=N - 2), torch.arange(N), M)
    assert rejected == 2
    assert torch.equal(received[: N - 2], messages(n=N - 2))


def test_single_precision_messages_are_taken():
    received, rejected = accept(messages().float(), torch.arange(N), M)
    assert rejected == 0
    assert received.dtype == torch.float64


@given(
    st.lists(
        st.one_of(
            st.floats(width=64), st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e308, 0.0, 1.0, 5e-324])
        ),
        min_size=0,
        max_size=M + 2,
    ),
    st.booleans(),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_hostile_messages_move_the_broadcast_by_no_more_than_the_bound(entries, normalize):
    mechanism, w = SubsampledGaussian(1.0, 1.0, 2.0, "tight", normalize=normalize), weights()
    sent = list(messages())
    sent[4] = torch.tensor(entries, dtype=torch.float64)  # of any length
    without = messages()
    without[4] = 0
    moved = (release(mechanism, sent, w).values - release(mechanism, without, w).values).norm()
    assert torch.isfinite(release(mechanism, sent, w).values).all()
    assert float(moved) <= mechanism.sensitivity(w) * (1 + 1e-9)


def test_all_clipped_releases_do_not_depend_on_S():
    sent = messages(scale=1e3)
    (small, private), (large, _) = (both(SubsampledGaussian(0.6, 1.0, S), sent) for S in (2.0**-4, 2.0**3))
    assert private.n_clipped == private.n_chosen > 0
    assert torch.equal(small.values * 2.0**7, large.values)


def test_poisson_choice():
    mechanism = SubsampledGaussian(0.3, 1.0, 2.0)
    chosen = torch.stack([mechanism.choose(50, ENTROPY, t) for t in range(4000)]).double()
    rate_se = math.sqrt(0.3 * 0.7 / 4000)
    assert (chosen.mean(0) - 0.3).abs().max() < 4.5 * rate_se
    assert float(chosen.sum(1).var()) == pytest.approx(50 * 0.21, rel=4.5 * math.sqrt(2 / 4000))
    correlation = torch.corrcoef(chosen.T) - torch.eye(50, dtype=torch.float64)
    assert correlation.abs().max() < 5.5 / 4000**0.5
    assert SubsampledGaussian(1.0, 1.0, 2.0).choose(50, ENTROPY, 0).all()


class Given:
    """Entropy of given numbers, that notes what is asked of it."""

    reproducible = True

    def __init__(self, numbers):
        self.numbers, self.asked = torch.tensor(numbers, dtype=torch.float64), []

    def uniform(self, purpose, round, size):
        self.asked.append((purpose, round, size))
        return self.numbers


@pytest.mark.parametrize("sampling", ["poisson", "fixed_size"])
def test_those_with_a_number_below_q_or_the_smallest_are_chosen(sampling):
    entropy = Given([0.0, 0.5, math.nextafter(0.5, 0.0), 0.75])
    chosen = SubsampledGaussian(0.5, 1.0, 2.0, sampling=sampling).choose(4, entropy, 7)
    assert chosen.dtype == torch.bool and chosen.tolist() == [True, False, True, False]
    assert entropy.asked == [("choice", 7, 4)]


def test_choice_and_noise_are_independent_streams():
    first = SubsampledGaussian(0.3, 1.0, 2.0).choose(50, ENTROPY, 0).double()
    noise = release(SubsampledGaussian(0.3, 1.0, 2.0), [None] * 50, weights(n=50)).values.flatten()
    assert abs(float(torch.corrcoef(torch.stack([first[: P * M], noise]))[0, 1])) < 4.5 / (P * M) ** 0.5


def test_fixed_size_choice():
    mechanism = SubsampledGaussian(0.3, 1.0, 2.0, sampling="fixed_size")
    chosen = torch.stack([mechanism.choose(10, ENTROPY, t) for t in range(3000)])
    assert (chosen.sum(1) == 3).all()
    assert (chosen.double().mean(0) - 0.3).abs().max() < 4.5 * math.sqrt(0.21 / 3000)
    assert int(SubsampledGaussian(0.001, 1.0, 2.0, sampling="fixed_size").choose(10, ENTROPY, 0).sum()) == 1
    assert mechanism.dp_event(torch.ones(1, 10), 0).sample_size == 3


def test_events():
    gaussian, nine = dp_accounting.GaussianDpEvent(1.5), torch.ones(1, 9)
    assert SubsampledGaussian(0.3, 1.5, 2.0).dp_event(nine, 0) == dp_accounting.PoissonSampledDpEvent(0.3, gaussian)
    assert SubsampledGaussian(0.3, 0, 2.0).dp_event(nine, 0) == dp_accounting.NonPrivateDpEvent()
    assert WeightedAverage().dp_event(nine, 0) == dp_accounting.NonPrivateDpEvent()
    drawn = SubsampledGaussian(0.3, 1.5, 2.0, sampling="fixed_size").dp_event(nine, 0)
    assert drawn == dp_accounting.SampledWithoutReplacementDpEvent(9, 3, dp_accounting.GaussianDpEvent(0.75))


def test_effective_charge_is_what_the_noise_is_worth():
    """`z sqrt(P) phi_max / max ||phi_n||` (spec): from z up to sqrt(P) z; tight has no more."""
    for round in (0, 7, 30):
        w = weights(round)
        nominal, effective = (SubsampledGaussian(0.4, 1.3, 2.0, charge=c) for c in ("nominal", "effective"))
        expected = 1.3 * math.sqrt(P) * float(w.max()) / float(w.norm(dim=0).max())
        assert nominal.charged_multiplier(w, round) == 1.3
        assert effective.charged_multiplier(w, round) == pytest.approx(expected, rel=1e-12)
        assert effective.sigma(w) / effective.tight_sensitivity(w) == pytest.approx(expected, rel=1e-12)
        tight = SubsampledGaussian(0.4, 1.3, 2.0, "tight", charge="effective")
        assert tight.charged_multiplier(w, round) == 1.3
    uniform, own = torch.full((P, N), 1 / N, dtype=torch.float64), torch.eye(P, N, dtype=torch.float64)
    assert effective.charged_multiplier(uniform, 0) == pytest.approx(1.3)
    assert effective.charged_multiplier(own, 0) == pytest.approx(1.3 * math.sqrt(P))


def test_normalised_messages_have_the_clip_norm_whatever_they_were():
    sent = messages()
    sent[2], sent[3], sent[4] = 1e-200 * sent[2], 1e250 * sent[3], 0.0
    mechanism = SubsampledGaussian(1.0, 0.0, 2.0, normalize=True)
    bounded, _ = mechanism.bounded(sent, P)
    norms = bounded.norm(dim=1)
    assert norms[4] == 0
    norms[4] = norms[0]
    assert torch.allclose(norms, torch.full((N,), 2.0 / math.sqrt(P), dtype=torch.float64), rtol=1e-14, atol=0)
    assert torch.allclose(torch.nn.functional.cosine_similarity(bounded[0], sent[0], 0), torch.ones(1).double())
    average = release(WeightedAverage(normalize=True), sent).values
    assert torch.allclose(average, weights() @ (bounded / (2.0 / math.sqrt(P))))
    assert WeightedAverage().sensitivity(weights()) == math.inf


@pytest.mark.parametrize(
    ("settings_", "says"),
    [
        ((0, 1, 1), r"sampling_probability must lie in \(0, 1\], got 0"),
        ((1.4, 1, 1), r"sampling_probability .* got 1\.4"),
        ((float("nan"), 1, 1), r"sampling_probability"),
        (("a", 1, 1), r"sampling_probability .* got 'a'"),
        ((True, 1, 1), r"sampling_probability"),
        ((0.5, -1, 1), r"noise_multiplier .* got -1"),
        ((0.5, float("nan"), 1), r"noise_multiplier"),
        ((0.5, float("inf"), 1), r"noise_multiplier"),
        ((0.5, 1, 0), r"clip_norm .* got 0"),
        ((0.5, 1, float("inf")), r"clip_norm"),
        ((0.5, 1, 1, "loose"), r"calibration must be one of 'paper', 'tight', got 'loose'"),
        ((0.5, 1, 1, "paper", "roulette"), r"sampling"),
    ],
)
def test_bad_settings_are_refused(settings_, says):
    with pytest.raises(ValueError, match=says):
        SubsampledGaussian(*settings_)


UNREAL = {
    "complex": torch.complex(torch.ones(M), torch.ones(M)),
    "complex with a hidden nan": torch.complex(torch.ones(M), torch.full((M,), math.nan)),
    "array": np.ones(M),
    "list": [1.0] * M,
    "number": 3,
    "list of a tensor": [torch.ones(M)],
    "sparse": torch.ones(M, dtype=torch.float64).to_sparse(),
    "without storage": torch.ones(M, device="meta"),
}


@pytest.mark.parametrize("kind", UNREAL)
@pytest.mark.parametrize(
    "make", [lambda: SubsampledGaussian(1.0, 1.0, 2.0), WeightedAverage], ids=["private", "average"]
)
def test_messages_of_a_wrong_type_count_as_zero_bit_for_bit(make, kind):
    """They must not raise either: a crash that only a chosen agent can cause would reveal the choice."""
    hostile, zeroed = list(messages()), list(messages())
    hostile[3], zeroed[3] = UNREAL[kind], torch.zeros(M, dtype=torch.float64)
    try:
        out, private = both(make(), hostile)
    except Exception as error:
        pytest.fail(f"one agent's message ends the round: {type(error).__name__}: {error}")
    assert torch.equal(out.values, release(make(), zeroed).values)
    assert private.n_rejected == 1


@pytest.mark.parametrize("whole", [False, True], ids=["one vector", "all as a matrix"])
def test_a_message_with_a_gradient_is_its_values_or_nothing(whole):
    """Both are safe; a release that carries an agent's graph, or that the ledger cannot write, is not."""
    sent = messages().requires_grad_() if whole else [*messages()[:-1], messages()[-1].clone().requires_grad_()]
    out = release(SubsampledGaussian(1.0, 1.0, 2.0), sent)
    assert not out.values.requires_grad
    assert len(digest(out.values)) == 64


def test_a_complex_matrix_is_no_set_of_messages():
    received, rejected = accept(torch.complex(messages(), messages(1)), torch.arange(N), M)
    assert rejected == N
    assert not received.any()


def test_only_chosen_messages_are_looked_at():
    """The message of an agent outside S_t changes neither the release nor any count."""
    mechanism = SubsampledGaussian(0.4, 1.0, 2.0)
    chosen = mechanism.choose(N, ENTROPY, 0)
    assert 0 < chosen.sum() < N
    sent, other = list(messages()), list(messages())
    for n in (~chosen).nonzero()[:, 0].tolist():
        other[n] = torch.full((M,), math.nan, dtype=torch.float64)
    (out, private), (same, private_of_other) = both(mechanism, sent), both(mechanism, other)
    assert torch.equal(out.values, same.values)
    counts = [(d.n_rejected, d.n_clipped, d.n_chosen) for d in (private, private_of_other)]
    assert counts[0] == counts[1]
    assert private.n_rejected == 0


def test_a_release_changes_no_input():
    sent, w = messages(scale=100.0), weights()
    before = sent.clone(), w.clone()
    release(SubsampledGaussian(1.0, 1.0, 2.0), sent, w)
    assert torch.equal(sent, before[0]) and torch.equal(w, before[1])


def test_fresh_entropy_gives_fresh_noise_and_the_same_seed_the_same():
    mechanism, sent = SubsampledGaussian(0.4, 1.0, 2.0), messages()
    first, second = (release(mechanism, sent, entropy=SystemEntropy()).values for _ in range(2))
    assert not (first == second).any()
    repeats = [release(mechanism, sent, entropy=SeededEntropy(Streams(9))).values for _ in range(2)]
    assert torch.equal(*repeats)
    assert not torch.equal(repeats[0], release(mechanism, sent, round=1, entropy=SeededEntropy(Streams(9))).values)


def test_signal_and_noise_add_up_to_the_release():
    mechanism, sent, w = SubsampledGaussian(1.0, 0.5, 2.0), messages(), weights()
    out, private = both(mechanism, sent, w)
    total = w @ clip(sent, 2.0 / math.sqrt(P))[0]
    assert (out.sigma, out.sensitivity) == (mechanism.sigma(w), mechanism.sensitivity(w))
    assert private.signal == pytest.approx(float(total.norm()))
    assert private.noise == pytest.approx(float((out.values - total).norm()))
    assert private.n_clipped == int((sent.norm(dim=1) > 2.0 / math.sqrt(P)).sum())


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_order_of_the_two_sensitivities_for_any_weights(n, p, seed):
    """`tight <= paper <= sqrt(P) tight`, whatever the weights, with the tight one attained by some agent."""
    w = torch.rand(p, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) ** 4 + 1e-9
    w = w / w.sum(1, keepdim=True)
    paper, tight = (SubsampledGaussian(0.3, 1.0, 5.0, c).sensitivity(w) for c in ("paper", "tight"))
    assert tight <= paper * (1 + 1e-12)
    assert paper <= math.sqrt(p) * tight * (1 + 1e-12)
    sent = 1e3 * torch.ones(n, M, dtype=torch.float64)
    moved = []
    for agent in range(n):
        alone = torch.zeros_like(sent)
        alone[agent] = sent[agent]
        total = (w / 0.3) @ clip(alone, 5.0 / math.sqrt(p))[0]
        moved.append(float(total.norm()))
    assert max(moved) == pytest.approx(tight, rel=1e-12)
