"""Gaussian noise from a secret key, correlated from round to round: rows of C⁻¹ z.

Row t is (z_t − Σ_{0<i<bands} c_i row_{t−i}) / c_0, for the coefficients c of `matrix_factorisation`, so it
needs the bands − 1 rows before it. Noise of `buffered_toeplitz` needs its buffers instead. Both are kept in a
file without a name, which is only a cache: a new process computes them again from the key. So memory holds
one row, whatever the number of bands or buffers.

z comes from SHAKE-256 of (key, row, block) by the method of Box and Muller. A generator such as torch's would
keep few bits of the key, and public seeds would allow everyone to subtract the noise.

These are floating-point numbers. The set of possible sums depends on the data (Mironov, CCS 2012), which the
guarantee does not cover; the discrete noise of `samplers` has no such gap.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from functools import lru_cache

import numpy as np

from antiphon.privacy.buffered_toeplitz import BufferedToeplitz

BLOCK = 2**16  # entries of a row that are drawn at once
Matrix = tuple[float, ...] | BufferedToeplitz  # C: the coefficients of its bands, or its buffers


def standard_normal(key: bytes, row: int, block: int, size: int) -> np.ndarray:
    """Return independent N(0, 1) numbers that follow from the key, the row and the block. [size]"""
    half = (size + 1) // 2
    stream = hashlib.shake_256(key + struct.pack("<QQ", row, block)).digest(16 * half)
    uniform = ((np.frombuffer(stream, dtype="<u8") >> np.uint64(11)) + np.uint64(1)) * 2.0**-53  # (0, 1]
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]


class _Vectors:
    """Vectors of one size in a file that its owner alone can read, and that ends with the process."""

    def __init__(self, size: int, folder: str | None) -> None:
        self.size, self.file = size, tempfile.TemporaryFile(dir=folder)  # noqa: SIM115

    def write(self, place: int, start: int, values: np.ndarray) -> None:
        self.file.seek(8 * (place * self.size + start))
        self.file.write(values.data)
        self.file.flush()

    def read(self, place: int, start: int, size: int) -> np.ndarray:
        values = os.pread(self.file.fileno(), 8 * size, 8 * (place * self.size + start))
        if len(values) < 8 * size:
            raise OSError("the file of noise was cut off while the run used it")
        return np.frombuffer(values, dtype=np.float64)


class NoiseRows:
    """The rows of C⁻¹ z, for z of variance 1. Rows are asked for in order; an earlier one starts again."""

    def __init__(self, key: bytes, coefficients: tuple[float, ...], size: int, folder: str | None) -> None:
        self.key, self.coefficients, self.size = key, coefficients, size
        self.next = 0  # the first row that was not drawn yet
        self.kept = _Vectors(size, folder) if len(coefficients) > 1 else None

    def row(self, number: int) -> np.ndarray:
        """Return a row. [size], float64"""
        if self.kept is None:
            return self._draw(number)
        if not self.next - len(self.coefficients) <= number < self.next:
            if number < self.next:
                self.next = 0
            while self.next <= number:
                row = self._draw(self.next)
                self.kept.write(self._place(self.next), 0, row)
                self.next += 1
            return row
        return self.kept.read(self._place(number), 0, self.size)

    def _draw(self, number: int) -> np.ndarray:
        row = np.empty(self.size)
        for block, start in enumerate(range(0, self.size, BLOCK)):
            part = row[start : start + BLOCK]
            part[:] = standard_normal(self.key, number, block, len(part))
            for lag, coefficient in enumerate(self.coefficients[1 : number + 1], start=1):
                assert self.kept is not None
                part -= coefficient * self.kept.read(self._place(number - lag), start, len(part))
            part /= self.coefficients[0]
        return row

    def _place(self, number: int) -> int:
        return number % len(self.coefficients)


class BufferedRows:
    """The same for a matrix with buffers: row = z − Σ_j ω_j S_j, and then S_j ← row + θ_j S_j."""

    def __init__(self, key: bytes, matrix: BufferedToeplitz, size: int, folder: str | None) -> None:
        self.key, self.matrix, self.size = key, matrix, size
        self.next = 0  # the first row that was not drawn yet
        self.kept = _Vectors(size, folder)  # the last row, then the buffers before it

    def row(self, number: int) -> np.ndarray:
        """Return a row. [size], float64"""
        if number == self.next - 1:
            return self.kept.read(0, 0, self.size)
        if number < self.next:
            self.next = 0
        while self.next <= number:
            row = self._draw()
        return row

    def _draw(self) -> np.ndarray:
        number, self.next = self.next, 0  # if it is interrupted, the buffers fit no row: start again
        row = np.empty(self.size)
        for block, start in enumerate(range(0, self.size, BLOCK)):
            part = row[start : start + BLOCK]
            before = self.kept.read(0, start, len(part)) if number else np.zeros(len(part))
            part[:] = standard_normal(self.key, number, block, len(part))
            for place, (scale, decay) in enumerate(zip(self.matrix.scales, self.matrix.decays, strict=True)):
                buffer = before + decay * self.kept.read(1 + place, start, len(part)) if number else before
                self.kept.write(1 + place, start, buffer)
                part -= scale * buffer
            self.kept.write(0, start, part)
        self.next = number + 1
        return row


@lru_cache(maxsize=1)
def noise_rows(key: bytes, matrix: Matrix, size: int, folder: str | None) -> NoiseRows | BufferedRows:
    """Return the rows of a run; those of the last run that asked are kept."""
    if isinstance(matrix, BufferedToeplitz):
        return BufferedRows(key, matrix, size, folder)
    return NoiseRows(key, matrix, size, folder)
