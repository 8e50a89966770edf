"""Accuracies as they are printed."""

import pytest

from wcapsnet.formatting import mean_and_deviation, percent


@pytest.mark.parametrize("images", [3, 15, 4000, 8000, 10_000, 26_032, 60_000])
def test_every_share_is_rounded_as_the_fraction_that_it_is(images):
    for correct in range(images + 1):
        hundredths = (2 * 10_000 * correct + images) // (2 * images)  # ⌊10,000 correct/images + ½⌋
        printed = f"{hundredths // 100}.{hundredths % 100:02d}"
        if 0 < correct < images:
            printed = {0: "<0.01", 10_000: ">99.99"}.get(hundredths, printed)
        assert percent(correct / images) == printed


@pytest.mark.parametrize(
    ("shares", "printed"),
    [
        ((0.9969, 0.9970), "99.70 ± 0.01"),  # the mean is 99.695, and as a float less
        ((0.9970, 0.9971), "99.71 ± 0.01"),
        ((0.9340, 0.9350, 0.9360), "93.50 ± 0.10"),
        ((0.9969,), "99.69"),
    ],
)
def test_mean_and_deviation_over_seeds(shares, printed):
    assert mean_and_deviation(shares) == printed


def test_a_difference_has_a_sign_and_none_is_plus_zero():
    assert percent(0.99695 - 0.9968, sign="+") == "+0.02"
    assert percent(0.9968 - 0.99695, sign="+") == "-0.02"
    assert percent(0.1 + 0.2 - 0.3, sign="+") == percent(0.3 - (0.1 + 0.2), sign="+") == "+0.00"
    assert percent(-0.00001, sign="+") == "-0.00"


def test_other_numbers_of_digits():
    assert percent(0.125, 0) == "13"
    assert percent(0.99949, 1) == "99.9"
    assert percent(1.0, 1) == "100.0"


def test_only_nothing_is_printed_as_zero_percent():
    assert percent(0.0004, 1) == "<0.1"
    assert percent(0.00001) == "<0.01"
    assert percent(0.004, 0) == "<1"
    assert percent(0.0) == percent(1e-17) == percent(0.00001, sign="-") == "0.00"
    assert percent(0.0005, 1) == "0.1"


def test_only_one_is_printed_as_a_hundred_percent():
    assert percent(0.99951, 1) == ">99.9"
    assert percent(0.9999999, 2) == ">99.99"
    assert percent(0.996, 0) == ">99"
    assert percent(1 - 1e-16) == percent(1.0) == "100.00"  # rounding of a float
    assert percent(1.2, 1) == "120.0"
