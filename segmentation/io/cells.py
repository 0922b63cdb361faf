"""Parsing of cells in users' tables: numbers, ages, sexes, and words for a missing value."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

# Words for a missing number or code, in lower case.
MISSING = frozenset(
    {"", "n/a", "na", "#n/a", "nan", "none", "null", "unknown", "-", "?", "."}
)
# Words for a missing name, in lower case. A participant or a group may be called NA or None.
NO_NAME = frozenset({"", "n/a"})

_WORDS_OF_SEX = {
    "M": "m male man boy männlich mann homme masculin maschio uomo hombre masculino",
    "F": "f female woman girl w weiblich frau femme féminin femmina donna mujer femenino",
}
_SEXES = {word: sex for sex, words in _WORDS_OF_SEX.items() for word in words.split()}
_AGES = (0.0, 120.0)

_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
# A comma that cannot separate thousands: 61,5 and 1344,123.
_DECIMAL_COMMA = re.compile(
    r"[+-]?(?:\d+,(?:\d{1,2}|\d{4,})|(?:0|\d{4,}),\d+)", re.ASCII
)
# 1,400,000 and 1,400,000.5; 1.400.000 and 1.400.000,5; 1 400 000.
_GROUPED = re.compile(
    r"[+-]?\d{1,3}(?:(?:,\d{3}){2,}(?:\.\d+)?|,\d{3}\.\d+|(?:\.\d{3}){2,}(?:,\d+)?|\.\d{3},\d+"
    r"|(?:[ \u00a0\u202f']\d{3})+(?:[.,]\d+)?)",
    re.ASCII,
)


def composed(text: str) -> str:
    """Return text in Unicode's composed form (NFC); macOS decomposes é into e and an accent."""
    return unicodedata.normalize("NFC", text)


def one_spelling(words: Iterable[str]) -> dict[str, str]:
    """Map each word to the most frequent spelling of it.

    Spellings of a word differ in case, or in the Unicode form of accents, which looks the same.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    folded = {}
    for word in words:
        spelling = composed(word)
        folded[word] = spelling.casefold()
        counts[folded[word]][spelling] += 1
    return {word: counts[key].most_common(1)[0][0] for word, key in folded.items()}


def number_in(cell: str) -> float:
    """Return the number that is written in a cell.

    Decimal commas and separators of thousands are accepted where they are unambiguous: 61,5 and
    1,400,000. Raises ValueError for every other cell, such as 1,400, which could be either. The
    message is the reason, worded as the end of a sentence.
    """
    if _PLAIN.fullmatch(cell):
        number = float(cell)
        if number in (float("inf"), float("-inf")):
            raise ValueError("is too large")
        return number
    if _DECIMAL_COMMA.fullmatch(cell):
        return float(cell.replace(",", "."))
    if _GROUPED.fullmatch(cell):
        # If the last separator occurs only once, it separates the decimals.
        decimals = re.search(r"[.,](\d+)$", cell)
        if decimals is None or cell.count(cell[decimals.start()]) > 1:
            return float(re.sub(r"[^\d+-]", "", cell))
        whole = re.sub(r"[^\d+-]", "", cell[: decimals.start()])
        return float(f"{whole}.{decimals[1]}")
    if re.fullmatch(r"[+-]?\d{1,3},\d{3}", cell, re.ASCII):
        raise ValueError("could be thousands or decimals")
    raise ValueError("is no number")


def may_be_thousands(cell: str, value_in: Callable[[str], float]) -> bool:
    """Return True if a cell is valid as a decimal number and as thousands, such as 33.238 (days).

    `value_in` converts a cell and raises ValueError for a value that is not valid.
    """
    if not re.fullmatch(r"[1-9]\d{0,2}\.\d{3}", cell, re.ASCII):
        return False
    try:
        value_in(cell.replace(".", ""))
    except ValueError:
        return False
    return True


def age_in(cell: str, per_year: float = 1) -> float:
    """Return the age in a cell, in years.

    `per_year` is the number of the cell's units in a year: 12 for months. Raises ValueError for a
    cell that is no number or no age from 0 to 120 years. The message is the reason, worded as the
    end of a sentence.
    """
    # BIDS censors great ages as "89+".
    age = number_in(cell.removesuffix("+")) / per_year
    low, high = _AGES
    if not low <= age <= high:
        raise ValueError(f"is no age from {low:g} to {high:g} years")
    return age


def sex_in(cell: str) -> str:
    """Return M or F for a cell with a word for a sex; raise ValueError for an unknown word."""
    sex = _SEXES.get(cell.casefold())
    if sex is None:
        raise ValueError("is not understood as a sex: write M or F")
    return sex
