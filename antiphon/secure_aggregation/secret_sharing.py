"""Shamir's secret sharing (A. Shamir, "How to Share a Secret", CACM 1979) of 32 bytes."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping

PRIME = 2**256 + 297  # the smallest prime above 2^256: a secret of 32 bytes is one element of the field
SHARE_BYTES = 33


def split(secret: bytes, threshold: int, num_shares: int) -> list[bytes]:
    """Return the shares 1, 2, ... of a secret. `threshold` of them give it back; fewer say nothing about it.

    Share i is a random polynomial of degree threshold − 1 at i. Its value at 0 is the secret.
    """
    if len(secret) != 32 or not 1 <= threshold <= num_shares:
        raise ValueError(f"cannot split {len(secret)} bytes into {num_shares} shares, {threshold} needed")
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)] + [int.from_bytes(secret)]
    shares = []
    for x in range(1, num_shares + 1):
        y = 0
        for coefficient in coefficients:
            y = (y * x + coefficient) % PRIME
        shares.append(y.to_bytes(SHARE_BYTES))
    return shares


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret from `threshold` shares by their numbers, by Lagrange interpolation at 0.

    >>> shares = dict(enumerate(split(b"antiphon" * 4, threshold=2, num_shares=3), 1))
    >>> join({1: shares[1], 3: shares[3]})
    b'antiphonantiphonantiphonantiphon'
    """
    total = 0
    for number, share in shares.items():
        others = [other for other in shares if other != number]
        below = math.prod(other - number for other in others)
        total += int.from_bytes(share) * math.prod(others) * pow(below, -1, PRIME)
    total %= PRIME
    if total >> 256:
        raise ValueError("these shares do not belong to one secret of 32 bytes")
    return total.to_bytes(32)
