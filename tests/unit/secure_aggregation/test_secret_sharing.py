from __future__ import annotations

import contextlib
import itertools
import secrets

import pytest

from antiphon.secure_aggregation.secret_sharing import PRIME, join, split


def is_prime(number: int) -> bool:
    """Miller and Rabin with 20 bases."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    bases = range(2, 40, 2)
    return all(
        pow(base, odd, number) == 1 or any(pow(base, odd << i, number) == number - 1 for i in range(twos))
        for base in bases
    )


def test_the_field_is_the_smallest_prime_field_that_holds_32_bytes() -> None:
    assert is_prime(PRIME)
    assert not any(is_prime(2**256 + step) for step in range(1, 297, 2))


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(range(32))])
def test_every_subset_of_threshold_shares_gives_the_secret(secret: bytes) -> None:
    shares = dict(enumerate(split(secret, threshold=3, num_shares=6), 1))
    for numbers in itertools.combinations(shares, 3):
        assert join({number: shares[number] for number in numbers}) == secret


def test_fewer_shares_fit_every_secret_equally_well() -> None:
    """For any two shares and any secret there is a third share that completes them: they say nothing."""
    shares = dict(enumerate(split(secrets.token_bytes(32), threshold=3, num_shares=3), 1))
    for other in (bytes(32), b"a" * 32, b"\xff" * 32):
        # Lagrange at 0 for the points 1, 2, 3: secret = 3 y1 − 3 y2 + y3.
        y1, y2 = (int.from_bytes(shares[number]) for number in (1, 2))
        y3 = (int.from_bytes(other) - 3 * y1 + 3 * y2) % PRIME
        assert join({1: shares[1], 2: shares[2], 3: y3.to_bytes(33)}) == other


def test_shares_of_one_secret_differ_from_call_to_call() -> None:
    secret = bytes(32)
    assert split(secret, 2, 3) != split(secret, 2, 3)


def test_too_few_shares_do_not_give_the_secret() -> None:
    secret = b"s" * 32
    shares = dict(enumerate(split(secret, threshold=3, num_shares=5), 1))
    for numbers in itertools.combinations(shares, 2):
        with contextlib.suppress(ValueError):  # a value of more than 32 bytes
            assert join({number: shares[number] for number in numbers}) != secret


def test_a_secret_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot split 31 bytes"):
        split(bytes(31), 2, 3)
