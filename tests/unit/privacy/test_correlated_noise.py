"""Noise from a key: its distribution, its correlations, and the same rows after a restart."""

from __future__ import annotations

import hashlib
import resource
import struct
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import toeplitz

from antiphon.privacy.correlated_noise import AHEAD, BLOCK, CHUNK, NoiseRows, standard_normal
from antiphon.privacy.matrix_factorisation import optimise
from antiphon.privacy.noise_key import derived_key

KEY = bytes(range(32))


def test_independent_noise_is_standard_normal() -> None:
    values = standard_normal(KEY, 3, 0, 2**18 + 1)
    assert len(values) == 2**18 + 1
    assert stats.kstest(values, "norm").pvalue > 0.01
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 0.01
    assert abs(np.corrcoef(values[1:] ** 2, values[:-1] ** 2)[0, 1]) < 0.01


def test_rows_blocks_and_keys_have_independent_noise() -> None:
    first = standard_normal(KEY, 0, 0, 10_000)
    for other in (
        standard_normal(KEY, 1, 0, 10_000),
        standard_normal(KEY, 0, 1, 10_000),
        standard_normal(derived_key(KEY, "other"), 0, 0, 10_000),
    ):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.04


def test_the_numbers_follow_from_the_key_by_box_and_muller() -> None:
    """Written again, value by value: an older run that is resumed must find the noise that it released."""
    size, half = 11, 6
    stream = hashlib.shake_256(KEY + struct.pack("<QQ", 5, 2)).digest(16 * half)
    uniform = [((value >> 11) + 1) / 2**53 for value in struct.unpack(f"<{2 * half}Q", stream)]
    radii, angles = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * np.array(uniform[half:])
    want = np.concatenate([radii * np.cos(angles), radii * np.sin(angles)])[:size]
    assert standard_normal(KEY, 5, 2, size) == pytest.approx(want, abs=1e-14)


@pytest.mark.parametrize(("bands", "rounds", "size"), [(4, 12, 50), (AHEAD, 20, 50), (21, 45, CHUNK + 3)])
def test_rows_solve_the_banded_system(bands: int, rounds: int, size: int, tmp_path: Path) -> None:
    """C row = z, exactly the noise that the accountant counts."""
    c = optimise(rounds, bands, bands, 3)
    rows = NoiseRows(KEY, c, size, str(tmp_path))
    noise = np.stack([rows.row(number) for number in range(rounds)])
    z = np.stack([standard_normal(KEY, number, 0, size) for number in range(rounds)])
    system = toeplitz(np.pad(c, (0, rounds - len(c))), np.zeros(rounds))
    assert system @ noise == pytest.approx(z, abs=1e-12)


def test_the_covariance_over_rounds_is_that_of_the_inverse(tmp_path: Path) -> None:
    c, rounds, size = optimise(10, 4, 4, 3), 10, 200_000
    rows = NoiseRows(KEY, c, size, str(tmp_path))
    noise = np.stack([rows.row(number) for number in range(rounds)])
    inverse = np.linalg.inv(toeplitz(np.pad(c, (0, rounds - len(c))), np.zeros(rounds)))
    want = inverse @ inverse.T
    scale = np.sqrt(np.outer(np.diag(want), np.diag(want)))
    assert np.abs(noise @ noise.T / size - want).max() < 5 * scale.max() / np.sqrt(size) * np.sqrt(2)
    assert (noise @ noise.T / size)[0, 1] < -0.3  # later noise takes back earlier noise


@pytest.mark.parametrize("bands", [1, 5, 11])
def test_a_restart_at_any_row_gives_the_same_bits(bands: int, tmp_path: Path) -> None:
    c, size = optimise(12, bands, bands, 3), BLOCK + 7
    rows = NoiseRows(KEY, c, size, str(tmp_path))
    whole = [rows.row(number) for number in range(12)]
    for begin in (11, 4, 0):
        again = NoiseRows(KEY, c, size, str(tmp_path))
        for number in range(begin, 12):
            assert again.row(number).tobytes() == whole[number].tobytes()
    for number in (11, 9, 2, 3, 3, 0):  # rows that are kept, and rows that are drawn again
        assert rows.row(number).tobytes() == whole[number].tobytes()


def test_the_rows_are_in_no_file_that_others_could_read(tmp_path: Path) -> None:
    rows = NoiseRows(KEY, optimise(12, 5, 5, 3), 100, str(tmp_path))
    for number in range(6):
        rows.row(number)
    assert list(tmp_path.iterdir()) == []


def test_memory_does_not_grow_with_the_bands(tmp_path: Path) -> None:
    """64 bands of 2 million entries would be 1 GB; two rows and a chunk of all are 42 MB."""
    size, c = 2_000_000, (1.0, *(0.5 / lag for lag in range(1, 64)))
    rows = NoiseRows(KEY, c, size, str(tmp_path))
    rows.row(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(1, 9):
        rows.row(number)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10 < 48
