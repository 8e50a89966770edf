"""Is a difference larger than the noise? Worked by hand, and against SciPy."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from wcapsnet.reports.significance import Sample, Spread, apart, compare, holm, pooled, spreads
from wcapsnet.reports.tables import verdict

counts = st.lists(st.integers(9000, 9999), min_size=2, max_size=5, unique=True)


@given(counts, counts)
def test_with_seeds_on_both_sides_it_is_students_test(one, other):
    a, b = [n / 1e4 for n in one], [n / 1e4 for n in other]
    found = compare(Sample(tuple(a), 10000), Sample(tuple(b), 10000))
    scipys = stats.ttest_ind(a, b)
    assert found.test == "t"
    assert found.p == pytest.approx(scipys.pvalue, rel=1e-6)
    interval = scipys.confidence_interval(0.95)
    ours = (found.difference - found.margin, found.difference + found.margin)
    assert ours == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)
    swapped = compare(Sample(tuple(b), 10000), Sample(tuple(a), 10000))
    assert (swapped.difference, swapped.p) == pytest.approx((-found.difference, found.p))


def test_a_single_run_borrows_the_other_sides_spread():
    # .93 .94 .95: mean .94, s = .01;  t = (.94 − .90) / (.01 √(1 + ⅓)) = 2√3 = 3.464 with 2 degrees of freedom
    found = compare(Sample((0.93, 0.94, 0.95), 10000), Sample((0.90,), 10000))
    assert found.difference == pytest.approx(0.04)
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14))
    assert not found.larger_than_noise
    assert found.p == pytest.approx(stats.ttest_ind([0.93, 0.94, 0.95], [0.90]).pvalue)
    assert compare(Sample((0.90,), 10000), Sample((0.93, 0.94, 0.95), 10000)).p == pytest.approx(found.p)


def test_the_spread_of_all_rows_is_the_residual_variance_of_an_analysis_of_variance():
    # .93 .94 .95: squares 2 · 1e-4;  .90 .92: squares 2e-4;  .80 alone: nothing.  4e-4 over 2 + 1 degrees of freedom
    spread = pooled([(0.93, 0.94, 0.95), (0.90, 0.92), (0.80,)])
    assert (spread.variance, spread.freedom) == (pytest.approx(4e-4 / 3), 3)
    assert pooled([(0.80,)]) == Spread(0.0, 0)
    # single runs by the spread of others: t = .02 / √(2 · 4e-4/3) with 3 degrees of freedom
    found = compare(Sample((0.82,), 10000), Sample((0.80,), 10000), spread)
    assert found.test == "t"
    assert found.p == pytest.approx(2 * stats.t.sf(0.02 / math.sqrt(8e-4 / 3), 3))
    assert found.margin == pytest.approx(stats.t.ppf(0.975, 3) * math.sqrt(8e-4 / 3))


WIDE = {"normalized": (0.9031, 0.9264), "wcapsnet": (0.9353, 0.9368, 0.9351), "uniform": (0.9404, 0.9373, 0.9359)}


def test_a_row_whose_seeds_lie_much_wider_stands_apart():
    own, rest = 2.33e-2**2 / 2, pooled([WIDE["wcapsnet"], WIDE["uniform"]])
    assert stats.f.sf(own / rest.variance, 1, 4) < 0.001
    assert spreads({**WIDE, "ce": (0.9377,)}) == {
        "normalized": Spread(pytest.approx(own), 1),
        **dict.fromkeys(("wcapsnet", "uniform", "ce"), rest),
    }
    # an F-test at 5 %, for one of three rows that could be it
    limit = math.sqrt(2 * stats.f.isf(0.05 / 3, 1, 4) * rest.variance)
    for factor, found in ((0.999, set()), (1.001, {"normalized"})):
        assert apart({**WIDE, "normalized": (0.9, 0.9 + factor * limit)}) == found


def test_of_several_wide_rows_the_widest_hides_no_other():
    rows = {**WIDE, "ws": (0.80, 0.99), "squash": (0.9350, 0.9360, 0.9355)}
    found = spreads(rows)
    assert found["ws"] == pooled([rows["ws"]])
    assert found["normalized"] == pooled([rows["normalized"]])
    assert found["squash"] == found["wcapsnet"] == pooled([rows[name] for name in ("wcapsnet", "uniform", "squash")])


def test_where_nothing_is_known_of_the_others_no_row_stands_apart():
    assert spreads({}) == {}
    assert spreads({"a": (0.9, 0.95)}) == {"a": pooled([(0.9, 0.95)])}
    alike = {"a": (0.9, 0.95), "b": (0.9,), "c": (0.9, 0.9)}  # c by chance: few images
    assert set(spreads(alike).values()) == {pooled(alike.values())}


def test_rows_with_spreads_of_their_own_are_compared_by_welchs_test():
    one, other = WIDE["normalized"], WIDE["wcapsnet"]
    found = compare(Sample(one, 10000), Sample(other, 10000), pooled([one]), pooled([other]))
    scipys = stats.ttest_ind(one, other, equal_var=False)
    assert found.p == pytest.approx(scipys.pvalue)
    interval = scipys.confidence_interval(0.95)
    ours = (found.difference - found.margin, found.difference + found.margin)
    assert ours == pytest.approx((interval.low, interval.high))
    assert found.test == "Welch"
    alone = compare(Sample(one, 10000), Sample((0.93,), 10000), pooled([one]), Spread(0.0, 0))
    assert alone == compare(Sample(one, 10000), Sample((0.93,), 10000), pooled([one])), "taken to be as wide"


def test_two_spreads_that_happen_to_be_equal_are_still_two():
    one, other = (0.25, 0.5, 0.75), (0.5, 0.75, 1.0)
    assert pooled([one]) == pooled([other])
    found = compare(Sample(one, 4), Sample(other, 4), pooled([one]), pooled([other]))
    assert found.p == pytest.approx(stats.ttest_ind(one, other, equal_var=False).pvalue)


def test_what_is_drawn_stands_apart_whatever_its_seeds():
    rows = {"random": (0.925, 0.926), "uniform": (0.937, 0.938), "ws": (0.934,)}
    assert apart(rows) == set()
    assert apart(rows, ("random",)) == {"random"}
    found = spreads({**rows, "random": (0.925,)}, ("random",))
    assert found["random"] == Spread(0.0, 0), "not known of a single run"
    assert found["ws"] is found["uniform"]
    chosen = compare(Sample((0.925,), 10000), Sample(rows["uniform"], 10000), found["random"], found["uniform"])
    assert chosen.test == "z"


def test_holms_correction_worked_by_hand():
    # .01 · 4 = .04;  .02 · 3 = .06;  .03 · 2 = .06;  .04 · 1 = .04, but not less than the one before: .06
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


def test_two_single_runs_are_held_against_the_test_sets_own_error():
    # p = .9: √(.09/10000) = .003 on both sides, √2 · .003 = .004243 together
    def p(difference):
        return compare(Sample((0.9 + difference,), 10000), Sample((0.9,), 10000))

    assert p(0.004).test == "z"
    assert not p(0.004).larger_than_noise
    assert p(0.009).larger_than_noise
    assert compare(Sample((0.9,), 10000), Sample((0.9,), 10000)).p == 1.0
    assert compare(Sample((0.904,), 10000), Sample((0.9,), 10000)).p == pytest.approx(
        2 * stats.norm.sf(0.004 / math.sqrt(0.09 / 1e4 + 0.904 * 0.096 / 1e4)), rel=1e-3
    )


def test_none_wrong_of_a_few_images_is_no_certainty():
    # 12 and 9 of 12, a hit and a miss added: 13/14 − 10/14 = .2143;  √(13 · 1/14³ + 10 · 4/14³) = .1390;  z = 1.542
    found = compare(Sample((1.0,), 12), Sample((0.75,), 12))
    assert found.difference == 0.25
    assert found.p == pytest.approx(2 * stats.norm.sf(1.542), abs=1e-3)
    assert not found.larger_than_noise
    assert found.margin > 0.25
    assert verdict(found).startswith("+25.00 [−5.81, +55.81], within the test set's noise")
    same, opposite = (compare(Sample((1.0,), 12), Sample((other,), 12)) for other in (1.0, 0.0))
    assert (same.p, same.margin > 0) == (1.0, True)
    assert opposite.p < 1e-9


@given(st.integers(1, 60), st.data())
def test_a_difference_is_larger_than_the_test_sets_noise_if_its_interval_leaves_out_0(images, data):
    one, other = (data.draw(st.integers(0, images)) for _ in range(2))
    found = compare(Sample((one / images,), images), Sample((other / images,), images))
    assume(abs(found.p - 0.05) > 1e-9)
    assert found.larger_than_noise == (abs(found.difference) > found.margin)
    if found.larger_than_noise:  # the usual test says so too
        table = [[one, images - one], [other, images - other]]
        assert stats.chi2_contingency(table, correction=False).pvalue < 0.05


def test_an_interval_of_a_difference_ends_at_100_points():
    assert "+100.00]" in verdict(compare(Sample((1.0,), 3), Sample((0.0,), 3)))


def test_seeds_that_agree_by_chance_are_not_taken_for_no_noise_at_all():
    found = compare(Sample((0.9, 0.9), 10000), Sample((0.901,), 10000))
    assert found.test == "z"
    assert not found.larger_than_noise
