"""Number formats of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from ... import rounding
from ...explain.probes import share_interval

NARROW = "\u202f"  # narrow no-break space


def percent(share: float, digits: int = 2) -> str:
    return f"{rounding.percent(share, digits)}{NARROW}%"


def interval(share: float, images: int) -> str:
    """The 95 % confidence interval of a share of this many images"""
    low, high = share_interval(share, images)
    return f"{percent(low)} to {percent(high)}"


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


def date(text: str) -> str:
    """2026-11-15T10:00:00+00:00 → 15 November 2026, 10:00 UTC; anything else unchanged"""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = when.strftime(" %Z") if when.tzinfo else ""
    return f"{when.day} {when.strftime('%B %Y, %H:%M')}{zone}"
