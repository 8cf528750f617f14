"""Gaussian noise from a secret key, correlated from round to round: rows of C⁻¹ z.

Row t is (z_t − Σ_{0<i<bands} c_i row_{t−i}) / c_0, for the coefficients c of `matrix_factorisation`, so it
needs the bands − 1 rows before it. They are kept in a file without a name, which is only a cache: a new
process computes them again from the key. So memory holds one row, whatever the number of bands.

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

BLOCK = 2**16  # entries of a row that are drawn at once


def standard_normal(key: bytes, row: int, block: int, size: int) -> np.ndarray:
    """Return independent N(0, 1) numbers that follow from the key, the row and the block. [size]"""
    half = (size + 1) // 2
    stream = hashlib.shake_256(key + struct.pack("<QQ", row, block)).digest(16 * half)
    uniform = ((np.frombuffer(stream, dtype="<u8") >> np.uint64(11)) + np.uint64(1)) * 2.0**-53  # (0, 1]
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]


class NoiseRows:
    """The rows of C⁻¹ z, for z of variance 1. Rows are asked for in order; an earlier one starts again."""

    def __init__(self, key: bytes, coefficients: tuple[float, ...], size: int, folder: str | None) -> None:
        self.key, self.coefficients, self.size = key, coefficients, size
        self.next = 0  # the first row that was not drawn yet
        # Readable by its owner only, and removed by the system when the process ends.
        self.file = tempfile.TemporaryFile(dir=folder) if len(coefficients) > 1 else None  # noqa: SIM115

    def row(self, number: int) -> np.ndarray:
        """Return a row. [size], float64"""
        if self.file is None:
            return self._draw(number)
        if not self.next - len(self.coefficients) <= number < self.next:
            if number < self.next:
                self.next = 0
            while self.next <= number:
                row = self._draw(self.next)
                self._write(row)
                self.next += 1
            return row
        return self._read(number, 0, self.size)

    def _draw(self, number: int) -> np.ndarray:
        row = np.empty(self.size)
        for block, start in enumerate(range(0, self.size, BLOCK)):
            part = row[start : start + BLOCK]
            part[:] = standard_normal(self.key, number, block, len(part))
            for lag, coefficient in enumerate(self.coefficients[1 : number + 1], start=1):
                part -= coefficient * self._read(number - lag, start, len(part))
            part /= self.coefficients[0]
        return row

    def _place(self, number: int) -> int:
        return 8 * self.size * (number % len(self.coefficients))

    def _write(self, row: np.ndarray) -> None:
        assert self.file is not None
        self.file.seek(self._place(self.next))
        self.file.write(row.data)
        self.file.flush()

    def _read(self, number: int, start: int, size: int) -> np.ndarray:
        assert self.file is not None
        values = os.pread(self.file.fileno(), 8 * size, self._place(number) + 8 * start)
        if len(values) < 8 * size:
            raise OSError("the file of noise was cut off while the run used it")
        return np.frombuffer(values, dtype=np.float64)


@lru_cache(maxsize=1)
def noise_rows(key: bytes, coefficients: tuple[float, ...], size: int, folder: str | None) -> NoiseRows:
    """Return the rows of a run; those of the last run that asked are kept."""
    return NoiseRows(key, coefficients, size, folder)
