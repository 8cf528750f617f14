"""Numbers formatted for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from antiphon.scoring.error_rate import Errors
from antiphon.scoring.statistics import Interval

MARK = "Written by antiphon"  # in every page and every file of figures
NONE = "–"


def percent(rate: float | None, digits: int = 2) -> str:
    """Format a rate in percent, without the percent sign.

    >>> percent(0.12345), percent(None)
    ('12.35', '–')
    """
    return NONE if rate is None or not math.isfinite(rate) else f"{100 * rate:.{digits}f}"


def bounds(interval: Interval | None, digits: int = 2) -> str:
    """Format the ends of an interval of rates, in percent.

    >>> bounds(Interval(0.12, 0.1, 0.14))
    '[10.00, 14.00]'
    """
    return "" if interval is None else f"[{percent(interval.low, digits)}, {percent(interval.high, digits)}]"


def edits(errors: Errors) -> str:
    """
    >>> edits(Errors(1200, 3, 4, length=9000))
    '1,200 / 3 / 4'
    """
    return f"{errors.substitutions:,} / {errors.deletions:,} / {errors.insertions:,}"


def size(num_bytes: float | None) -> str:
    """
    >>> size(5_013_620), size(999), size(None)
    ('5.01 MB', '999 B', '–')
    """
    if num_bytes is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB" if num_bytes < 999.5 else f"{num_bytes:,.0f} TB"


def energy(joules: float | None) -> str:
    """
    >>> energy(12.3), energy(45_678), energy(7_200_000), energy(None)
    ('12.3 J', '45.7 kJ', '7.2 MJ', '–')
    """
    if joules is None:
        return NONE
    for unit in ("J", "kJ"):
        if joules < 999.5:
            return f"{joules:.3g} {unit}"
        joules /= 1000
    return f"{joules:.3g} MJ" if joules < 999.5 else f"{joules:,.0f} MJ"


def duration(seconds: float | None) -> str:
    """
    >>> duration(0.53), duration(75), duration(7384), duration(None)
    ('0.5 s', '1 min 15 s', '2 h 03 min', '–')
    """
    if seconds is None:
        return NONE
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def ranges(numbers: Iterable[int], limit: int = 12) -> str:
    """Format round numbers as ranges, at most `limit` of them.

    >>> ranges([1, 2, 3, 7, 9, 10])
    '1–3, 7, 9–10'
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    text = [f"{low}" if low == high else f"{low}–{high}" for low, high in parts[:limit]]
    return ", ".join([*text, "…"] if len(parts) > limit else text)


def plain(text: str) -> str:
    """Escape text for Markdown, so that it cannot break a table or become markup."""
    for special in ("\\", "|", "`", "<", ">", "*", "]("):
        text = text.replace(special, "\\" + special)
    return " ".join(text.split())


def markdown_table(head: Sequence[str], *rows: Iterable[object]) -> str:
    """Return a Markdown table, with a dash for None."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ((plain(NONE if cell is None else str(cell)) for cell in line) for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)
