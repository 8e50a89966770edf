"""Numbers as people read them: percentages, durations, counts, dates."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal

# C0 and C1, the separators of lines and paragraphs, marks that reverse the direction of text, and bytes of file names
# that are not UTF-8
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
NARROW = "\u202f"  # narrow no-break space


def percent(share: float, digits: int = 2, sign: str = "") -> str:
    """0.99695 → 99.70, though the float is slightly less. `sign="+"` also prints the sign of positive numbers.

    Only 1 prints as 100: a smaller share that would round to it prints as >99.99, with the requested number of digits.
    Likewise, a positive share that would round to 0 prints as <0.01, but not with a `sign`: differences have "+",
    deviations "-".

    Shares are ratios of counts, and so are means over seeds and their differences. A float within 1e-10 of a half is
    therefore treated as a half, which is correct while runs times images is below 1e8.
    """
    exact = Decimal(f"{100 * share:.10f}") + 0  # + 0 removes the sign of zero; a small loss keeps its sign
    unit = Decimal(1).scaleb(-digits)
    rounded = exact.quantize(unit, ROUND_HALF_UP)
    if exact < 100 <= rounded:
        return f">{rounded - unit:{sign}f}"
    if exact > 0 == rounded and not sign:
        return f"<{unit}"
    return f"{rounded:{sign}f}"


def mean_and_deviation(shares: Sequence[float]) -> str:
    """Percent, over seeds: 93.57 ± 0.09; for a single run, its own value"""
    mean = percent(statistics.mean(shares))
    return f"{mean} ± {percent(statistics.stdev(shares), sign='-')}" if len(shares) > 1 else mean


def percentage(share: float, digits: int = 2) -> str:
    """`percent` with its sign, for pages"""
    return f"{percent(share, digits)}{NARROW}%"


def signed(value: float, digits: int = 3) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def weight(mean: float, margin: float = math.nan) -> str:
    return f"{mean:.3f}" if math.isnan(margin) else f"{mean:.3f} ± {margin:.3f}"


def loss(value: float) -> str:
    """Four significant digits"""
    size = abs(value)
    text = f"{value:,.0f}" if size >= 1000 else f"{value:.4g}" if size >= 0.001 or value == 0 else f"{value:.2e}"
    return text.replace("-", "−")


def plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def images_of(part: str, count: int = 2) -> str:
    """Training images, validation images, test images, in singular or plural"""
    return f"{'training' if part == 'train' else part} image{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"


def listed(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def some(items: Iterable[str], most: int = 5) -> str:
    """The first of a list, and how many more there are"""
    shown = list(items)
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


def printable(text: str, keep: str = "") -> str:
    """Text from elsewhere, such as a file name, with control characters spelled out: they could rewrite the terminal"""
    return _CONTROL.sub(lambda c: c[0] if c[0] in keep else c[0].encode("unicode_escape").decode(), text)


def date(text: str) -> str:
    """2026-11-15T10:00:00+00:00 → 15 November 2026, 10:00 UTC; anything else unchanged"""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = when.strftime(" %Z") if when.tzinfo else ""
    return f"{when.day} {when.strftime('%B %Y, %H:%M')}{zone}"
