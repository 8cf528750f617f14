"""English numbers as words.

Numbers are read as cardinals without "and" (105: one hundred five), those from 1100 to 1999 in two parts, as
years are (1905: nineteen oh five). A leading zero, or more than 15 digits, gives digits one by one. A speaker
may have said it in another way.
"""

from __future__ import annotations

import re

UNITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen")
ONES = (*UNITS, *TEENS, "nineteen")
TENS = ("zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SCALES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
MAX_DIGITS = 15
# 1,234.5 or 21st; not 1990s, whose reading is uncertain.
NUMBER = re.compile(
    r"(?P<minus>(?<!\S)-)?(?<![0-9])(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
    r"(?:\.(?P<decimals>[0-9]+)|(?P<ordinal>st|nd|rd|th)\b)?(?![0-9]|['’]?s\b)",
    re.IGNORECASE,
)


def spell_numbers(text: str) -> str:
    """Write the numbers of an English text as words.

    >>> spell_numbers("On the 21st, 1,250 ran 3.5 km, as in 1998")
    'On the twenty first, one thousand two hundred fifty ran three point five km, as in nineteen ninety eight'
    """

    def words(match: re.Match[str]) -> str:
        before, after = text[: match.start()][-1:], text[match.end() :][:1]
        return " " * before.isalnum() + _read(match) + " " * after.isalnum()

    return NUMBER.sub(words, text)


def _read(match: re.Match[str]) -> str:
    digits = match["whole"].replace(",", "")
    if (len(digits) > 1 and digits[0] == "0") or len(digits) > MAX_DIGITS:
        words = _one_by_one(digits)
    elif 1100 <= int(digits) <= 1999 and "," not in match["whole"] and not match["decimals"]:
        words = _in_two_parts(int(digits))
    else:
        words = cardinal(int(digits))
    if match["ordinal"]:
        words = _ordinal(words)
    if match["decimals"]:
        words += " point " + _one_by_one(match["decimals"])
    return "minus " + words if match["minus"] else words


def cardinal(number: int) -> str:
    """Return a whole number as words.

    >>> cardinal(40_012), cardinal(300)
    ('forty thousand twelve', 'three hundred')
    """
    if number < 20:
        return ONES[number]
    if number < 100:
        ten, one = divmod(number, 10)
        return f"{TENS[ten]} {ONES[one]}" if one else TENS[ten]
    value, name = next(scale for scale in SCALES if scale[0] <= number)
    count, rest = divmod(number, value)
    return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")


def _one_by_one(digits: str) -> str:
    return " ".join(ONES[int(digit)] for digit in digits)


def _in_two_parts(year: int) -> str:
    century, rest = divmod(year, 100)
    last = f"oh {ONES[rest]}" if 0 < rest < 10 else cardinal(rest) if rest else "hundred"
    return f"{cardinal(century)} {last}"


def _ordinal(words: str) -> str:
    before, space, last = words.rpartition(" ")
    usual = last.removesuffix("y") + "ieth" if last.endswith("y") else last + "th"
    return before + space + ORDINALS.get(last, usual)
