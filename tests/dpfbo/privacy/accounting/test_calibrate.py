"""Calibration on curves that are known: the answer is exact, and a target out of reach is one sentence."""

import decimal
import math

import pytest

from dpfbo.privacy.accounting import calibrate

ANSWERS = [1e-2, 0.012345, 0.0999949, 0.5, 0.99999, 1.0, 1.00001, 1.9999, 2.0, 3.14159, 9.9995, 64.001, 1023.9, 9999.4]


def up(value, digits=4):
    """The least number of so many digits that is not below."""
    with decimal.localcontext(prec=digits, rounding=decimal.ROUND_CEILING):
        return float(+decimal.Decimal(repr(value)))


def down(value, digits=4):
    with decimal.localcontext(prec=digits, rounding=decimal.ROUND_FLOOR):
        return float(+decimal.Decimal(repr(value)))


class Counted:
    """A curve of epsilon, and the places where it was asked."""

    def __init__(self, of):
        self.of, self.asked = of, []

    def __call__(self, value):
        self.asked.append(value)
        return self.of(value)


@pytest.mark.parametrize("exact", ANSWERS)
@pytest.mark.parametrize("power", [1, 2])
def test_noise_is_the_least_of_four_digits(exact, power):
    epsilon = Counted(lambda z: (exact / z) ** power if z >= exact / 10 else math.inf)
    assert calibrate.noise_multiplier(epsilon, 1.0) == up(exact)
    assert len(epsilon.asked) <= 60 and min(epsilon.asked) >= calibrate.SMALLEST_NOISE
    assert calibrate.is_noise_multiplier(up(exact), epsilon, 1.0)


@pytest.mark.parametrize("exact", [e for e in ANSWERS if 0.05 <= e <= 100])
def test_noise_takes_few_epsilons_of_a_usual_curve(exact):
    """Bisection asks for 14 to 20."""
    for curve in (lambda z: (exact / z) ** 1.25, lambda z: (exact / z + (exact / z) ** 2) / 2):
        epsilon = Counted(curve)
        assert calibrate.noise_multiplier(epsilon, 1.0) == up(exact)
        assert len(epsilon.asked) <= 9


@pytest.mark.parametrize("exact", ANSWERS)
@pytest.mark.parametrize(
    "curve",
    [
        lambda ratio: 2.0 if ratio > 1 else 1.0, lambda ratio: math.inf if ratio > 1 else 1e-300,
        lambda ratio: math.inf if ratio > 1 else 0.0, lambda ratio: math.ceil(ratio), lambda ratio: ratio**0.01,
        lambda ratio: min(ratio, 1.0) if ratio <= 1 else 1 + 1e-9 * ratio, lambda ratio: ratio**40,
        lambda ratio: 1 + 1e-15 if 1 < ratio < 50 else ratio,
    ],
)  # fmt: skip
def test_noise_is_found_on_any_curve(curve, exact):
    """Cliffs, plateaus and curves that the secant method misjudges."""
    epsilon = Counted(lambda z: curve(exact / z))
    assert calibrate.noise_multiplier(epsilon, 1.0) == up(exact)
    assert len(epsilon.asked) <= 30 and min(epsilon.asked) >= calibrate.SMALLEST_NOISE


@pytest.mark.parametrize("exact", [1e-6, 1.23456e-5, 0.00099999, 0.012345, 0.0999949, 0.1, 0.10001, 0.5, 0.99999])
@pytest.mark.parametrize("power", [1, 2])
def test_sampling_is_the_most_of_four_digits(exact, power):
    epsilon = Counted(lambda q: (q / exact) ** power)
    assert calibrate.sampling_probability(epsilon, 1.0) == down(exact)
    assert len(epsilon.asked) <= 60 and max(epsilon.asked) <= 1.0 and min(epsilon.asked) >= 1e-6


@pytest.mark.parametrize("exact", [*range(1, 40), 63, 64, 65, 127, 128, 129, 1000, 4095, 4096, 99_999, 100_000])
def test_rounds_are_the_most(exact):
    for curve in (lambda T: T / exact, lambda T: math.sqrt(T / exact), lambda T: 0.5 if exact >= T else math.inf):
        epsilon = Counted(curve)
        assert calibrate.rounds(epsilon, 1.0) == exact
        assert len(epsilon.asked) <= 70 and max(epsilon.asked) <= calibrate.MOST_ROUNDS + 1
        assert all(isinstance(T, int) for T in epsilon.asked)


@pytest.mark.parametrize("least", [0.5, 0.3, 2.0])
def test_no_round_has_less_noise_than_the_smallest(least):
    smallest = up(0.01 / least) if least < 1 else 0.01
    asked = Counted(lambda z: 1e-9)
    assert calibrate.noise_multiplier(asked, 1.0, least) == smallest == min(asked.asked)
    assert calibrate.is_noise_multiplier(smallest, asked, 1.0, least)
    assert not calibrate.is_noise_multiplier(calibrate._number(calibrate._place(smallest) - 1), asked, 1.0, least)
    assert not calibrate.is_noise_multiplier(calibrate._number(calibrate._place(smallest) + 1), asked, 1.0, least)


@pytest.mark.parametrize("least", [2.0, 1.0, 0.5, 0.3, 0.02, 0.012, 0.01, 0.004])
@pytest.mark.parametrize("exact", [0.005, 0.02, 0.4, 0.7, 0.9, 1.2, 3.0])
def test_no_search_goes_below_the_smallest_noise(exact, least):
    """Wherever the smallest multiplier, 0.01 to 2.5, lies beside 1, at which the search begins, and the answer."""
    smallest = up(max(0.01, 0.01 / least))
    epsilon = Counted(lambda z: exact / z)
    assert calibrate.noise_multiplier(epsilon, 1.0, least) == max(up(exact), smallest)
    assert min(epsilon.asked) >= smallest


def test_a_noise_multiplier_is_recognised_by_two_epsilons():
    epsilon = Counted(lambda z: 3.14159 / z)
    assert calibrate.is_noise_multiplier(3.142, epsilon, 1.0) and epsilon.asked == [3.142, 3.141]
    for z in (3.141, 3.143, 3.1416, 3, 4):
        assert not calibrate.is_noise_multiplier(z, epsilon, 1.0)
    for z in (True, "3.142", None, 0.009, 10_010.0, math.nan, math.inf):
        epsilon.asked.clear()
        assert not calibrate.is_noise_multiplier(z, epsilon, 1.0) and not epsilon.asked
    assert calibrate.is_noise_multiplier(3, lambda z: 3 / z, 1.0)  # a whole number is one
    assert calibrate.is_noise_multiplier(1e4, lambda z: 1e4 / z, 1.0)
    assert calibrate.is_noise_multiplier(0.01, lambda z: 0.01 / z, 1.0)


@pytest.mark.parametrize("most", [1, 2, 64, 100])
def test_as_many_rounds_as_allowed_are_not_refused(most):
    assert calibrate.rounds(lambda T: T / most, 1.0, most) == most


def test_noise_that_costs_as_much_as_less_noise_is_not_the_smallest():
    assert not calibrate.is_noise_multiplier(3.0, lambda z: 1.0, 1.0)


def test_a_target_that_only_the_most_noise_meets():
    assert calibrate.noise_multiplier(lambda z: 1e4 / z, 1.0) == 1e4
    assert calibrate.sampling_probability(lambda q: q / 1e-6, 1.0) == 1e-6
    with pytest.raises(ValueError, match=r"epsilon 1 cannot be met: noise multiplier 10000 still costs 1\.001"):
        calibrate.noise_multiplier(lambda z: 1.001e4 / z, 1.0)


@pytest.mark.parametrize(
    ("value", "above"),
    [
        (1.0, 1.0), (0.0123456, 0.01235), (9999.4, 1e4), (9.9995, 10.0), (1.234, 1.234), (1.2340000001, 1.234),
        (1.2341, 1.235), (1.2339999999, 1.234), (0.9999, 0.9999), (1e-6, 1e-6),
    ],
)  # fmt: skip
def test_a_place_is_that_of_the_next_number_of_four_digits(value, above):
    place = calibrate._place(value)
    assert calibrate._number(place) == above and calibrate._place(above) == place
    assert calibrate._number(place - 1) < min(value, above) < calibrate._number(place + 1)


def test_a_target_that_any_noise_meets_gets_the_least():
    assert calibrate.noise_multiplier(lambda z: 0.1 / z, 50.0) == calibrate.SMALLEST_NOISE
    assert calibrate.sampling_probability(lambda q: q, 1.0) == 1.0


@pytest.mark.parametrize("exact", [0.0123456, 0.99999, 1.0, 1.00001, 3.0, 9999.4])
def test_answers_are_rounded_to_the_private_side(exact):
    z = calibrate.noise_multiplier(lambda z: 1 / z, 1 / exact)
    assert exact * (1 - 1e-12) <= z <= exact * (1 + 2e-3 / 1.9)
    q = calibrate.sampling_probability(lambda q: q, min(exact, 0.9))
    assert 0.9989 * min(exact, 0.9) <= q <= min(exact, 0.9) * (1 + 1e-12)


@pytest.mark.parametrize("exact", [1, 2, 3, 4, 63, 64, 65, 1000])
def test_rounds_by_bisection(exact):
    assert calibrate.rounds(lambda T: float(T), exact + 0.5) == exact
    assert calibrate.rounds(lambda T: float(T), exact) == exact


def test_most_rounds_are_found_and_one_more_is_refused():
    assert calibrate.rounds(lambda T: float(T), 100.0, most=100) == 100
    with pytest.raises(ValueError, match="pays for more than 100 rounds"):
        calibrate.rounds(lambda T: float(T), 101.0, most=100)


@pytest.mark.parametrize(
    ("search", "says"),
    [
        (lambda: calibrate.noise_multiplier(lambda z: 1 + 1 / z, 0.5), "noise multiplier 10000 still costs 1"),
        (lambda: calibrate.sampling_probability(lambda q: 2 + q, 1.0), "sampling probability 1e-06 still costs 2"),
        (lambda: calibrate.rounds(lambda T: 3.0 * T, 1.0), "epsilon 1 does not pay for one round, which costs 3"),
        (lambda: calibrate.rounds(lambda T: 0.0, 1.0), "epsilon 1 pays for more than 100000 rounds"),
        (lambda: calibrate.noise_multiplier(lambda z: math.inf, 1.0), "still costs inf"),
    ],
)
def test_a_target_out_of_reach_is_one_sentence(search, says):
    with pytest.raises(ValueError, match=says) as error:
        search()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("target", [0, -1, math.nan, math.inf, "2", None])
@pytest.mark.parametrize("search", [calibrate.noise_multiplier, calibrate.sampling_probability, calibrate.rounds])
def test_a_target_that_is_none_is_refused(search, target):
    with pytest.raises(ValueError, match="epsilon must be a finite number above 0"):
        search(lambda x: 1 / x, target)
