"""Seeds: every random draw of a run has its own seed, derived from the run's seed and a name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable


def derive(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed for the draw called `names`: the same on every machine, at any time.

    >>> derive(0, "cohort", 3) == derive(0, "cohort", 3) != derive(0, "cohort", 4)
    True
    """
    text = json.dumps([seed, *names]).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def chosen_share(names: Iterable[str], fraction: float, seed: int) -> list[str]:
    """Return a share of some clients, drawn by the seed and their names: at least one, sorted.

    A larger share includes the clients of a smaller one.
    """
    order = sorted(names, key=lambda name: (derive(seed, "corrupted", name), name))
    return sorted(order[: max(1, round(fraction * len(order)))])
