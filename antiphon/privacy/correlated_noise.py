"""Gaussian noise from a secret key, correlated from round to round: rows of C⁻¹ z.

Row t is (z_t − Σ_{0<i<bands} c_i row_{t−i}) / c_0, for the coefficients c of `matrix_factorisation`, so it
needs the bands − 1 rows before it. Noise of `buffered_toeplitz` needs its buffers instead. Both are kept in a
file without a name, which is only a cache: a new process computes them again from the key. So memory holds
one row, whatever the number of bands or buffers.

Reading all earlier rows in every round takes longer than drawing one row. So each of them is read once for
`AHEAD` rounds: its contributions to all of these rounds are added up at once, and kept, too.

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
import torch

from antiphon.privacy.buffered_toeplitz import BufferedToeplitz

BLOCK = 2**16  # entries of a row that are drawn at once
CHUNK = 2**14  # entries that are side by side in the file, for all of its vectors
AHEAD = 8  # rounds for which earlier rows are read once
Matrix = tuple[float, ...] | BufferedToeplitz  # C: the coefficients of its bands, or its buffers


def standard_normal(key: bytes, row: int, block: int, size: int) -> np.ndarray:
    """Return independent N(0, 1) numbers that follow from the key, the row and the block. [size]"""
    half = (size + 1) // 2
    stream = bytearray(hashlib.shake_256(key + struct.pack("<QQ", row, block)).digest(16 * half))
    bits = np.frombuffer(stream, dtype="<u8")
    bits >>= np.uint64(11)
    bits += np.uint64(1)
    uniform = torch.from_numpy(bits * 2.0**-53)  # (0, 1]
    radius, angle = uniform[:half].log_().mul_(-2).sqrt_(), uniform[half:].mul_(2 * np.pi)
    values = torch.cat([torch.cos(angle), angle.sin_()])
    values.view(2, half).mul_(radius)
    return values.numpy()[:size]


def _normal_row(key: bytes, row: int, size: int) -> np.ndarray:
    """Return the row of z. [size]"""
    values = np.empty(size)
    for block, start in enumerate(range(0, size, BLOCK)):
        part = values[start : start + BLOCK]
        part[:] = standard_normal(key, row, block, len(part))
    return values


class _Vectors:
    """Vectors of one size in a file that its owner alone can read, and that ends with the process.

    Chunks of all vectors follow each other, so that one chunk of several vectors is read at once.
    """

    def __init__(self, size: int, places: int, folder: str | None) -> None:
        self.size, self.places = size, places
        self.file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self.file.truncate(8 * places * size)

    def starts(self) -> range:
        """Return where the chunks begin."""
        return range(0, self.size, CHUNK)

    def write(self, start: int, place: int, values: np.ndarray) -> None:
        """Write a chunk of the vectors from `place` on. [vectors, entries]"""
        left, at = np.ascontiguousarray(values).data.cast("B"), self._offset(start, place)
        while left:
            written = os.pwrite(self.file.fileno(), left, at)
            left, at = left[written:], at + written

    def read(self, start: int, place: int, number: int) -> np.ndarray:
        """Return a chunk of so many vectors. [vectors, entries]"""
        values = np.empty((number, min(CHUNK, self.size - start)))
        if os.preadv(self.file.fileno(), [values.data], self._offset(start, place)) < values.nbytes:
            raise OSError("the file of noise was cut off while the run used it")
        return values

    def vector(self, place: int) -> np.ndarray:
        """Return a vector. [size]"""
        return np.concatenate([self.read(start, place, 1)[0] for start in self.starts()])

    def _offset(self, start: int, place: int) -> int:
        return 8 * (start * self.places + place * min(CHUNK, self.size - start))


class NoiseRows:
    """The rows of C⁻¹ z, for z of variance 1. Ask for rows in order: an earlier one starts again."""

    def __init__(self, key: bytes, coefficients: tuple[float, ...], size: int, folder: str | None) -> None:
        self.key, self.coefficients, self.size = key, coefficients, size
        self.next = 0  # the first row that was not drawn yet
        self.bands = len(coefficients)
        # The last rows, each at its number modulo the bands, and then what earlier rows give to AHEAD rounds.
        self.kept = _Vectors(size, self.bands + AHEAD, folder) if self.bands > 1 else None

    def row(self, number: int) -> np.ndarray:
        """Return a row, which the caller may change. [size], float64"""
        if self.kept is None:
            return self._draw(number)
        if self.next - self.bands <= number < self.next:
            return self.kept.vector(number % self.bands)
        if number < self.next:
            self.next = 0
        while self.next <= number:
            row = self._draw(self.next)
            self.next += 1
        return row

    def _draw(self, number: int) -> np.ndarray:
        row = _normal_row(self.key, number, self.size)
        if self.kept is None:
            row /= self.coefficients[0]
            return row
        for start in self.kept.starts():
            part = row[start : start + CHUNK]
            part -= self._sum_of_earlier(self.kept, number, start)
            part /= self.coefficients[0]
            self.kept.write(start, number % self.bands, part[None])
        return row

    def _sum_of_earlier(self, kept: _Vectors, number: int, start: int) -> np.ndarray:
        """Return Σ_{0<i<bands} c_i row_{number−i}, a chunk of it."""
        ahead = number % AHEAD
        if ahead == 0:
            sums = self._weights(number) @ kept.read(start, 0, self.bands)
            kept.write(start, self.bands, sums)
            return sums[0]
        total = kept.read(start, self.bands + ahead, 1)[0]
        for lag in range(1, min(ahead + 1, self.bands)):
            total += self.coefficients[lag] * kept.read(start, (number - lag) % self.bands, 1)[0]
        return total

    def _weights(self, number: int) -> np.ndarray:
        """Return what each of the rows before `number` counts in the AHEAD rows from it on. [AHEAD, bands]"""
        weights = np.zeros((AHEAD, self.bands))
        for ahead in range(AHEAD):
            for lag in range(ahead + 1, min(self.bands, number + ahead + 1)):
                weights[ahead, (number + ahead - lag) % self.bands] = self.coefficients[lag]
        return weights


class BufferedRows:
    """The same for a matrix with buffers: row = z − Σ_j ω_j S_j, and then S_j ← row + θ_j S_j."""

    def __init__(self, key: bytes, matrix: BufferedToeplitz, size: int, folder: str | None) -> None:
        self.key, self.matrix, self.size = key, matrix, size
        self.next = 0  # the first row that was not drawn yet
        # the last row, then the buffers before it
        self.kept = _Vectors(size, 1 + len(matrix.scales), folder)

    def row(self, number: int) -> np.ndarray:
        """Return a row, which the caller may change. [size], float64"""
        if number == self.next - 1:
            return self.kept.vector(0)
        if number < self.next:
            self.next = 0
        while self.next <= number:
            row = self._draw()
        return row

    def _draw(self) -> np.ndarray:
        number, self.next = self.next, 0  # if it is interrupted, the buffers fit no row: start again
        row = _normal_row(self.key, number, self.size)
        decays = np.array(self.matrix.decays)[:, None]
        for start in self.kept.starts():
            part = row[start : start + CHUNK]
            last = self.kept.read(start, 0, self.kept.places) if number else np.zeros((1, len(part)))
            buffers = last[0] + decays * last[1:] if number else np.zeros((len(decays), len(part)))
            for scale, buffer in zip(self.matrix.scales, buffers, strict=True):
                part -= scale * buffer
            self.kept.write(start, 0, np.concatenate([part[None], buffers]))
        self.next = number + 1
        return row


@lru_cache(maxsize=1)
def noise_rows(key: bytes, matrix: Matrix, size: int, folder: str | None) -> NoiseRows | BufferedRows:
    """Return the rows of a run; those of the last run that asked are kept."""
    if isinstance(matrix, BufferedToeplitz):
        return BufferedRows(key, matrix, size, folder)
    return NoiseRows(key, matrix, size, folder)
