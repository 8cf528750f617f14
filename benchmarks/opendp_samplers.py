"""Our discrete samplers against OpenDP's: are the probabilities right, and how fast are they?

Both draw integers with P(x) ∝ exp(−x²/2σ²) or ∝ exp(−|x|/t). The values are compared with the exact
probabilities by a χ² test; neighbouring values count together until 20 draws are expected. Both samplers
take random bits from the operating system; draws of the two alternate. Seconds are those of the processor.

It needs OpenDP beside antiphon: pip install --no-deps opendp deprecated wrapt
"""

from __future__ import annotations

import importlib.metadata
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import parse_arguments, print_table, write_result
from scipy import stats

from antiphon.privacy.samplers import Secure, discrete_gaussian, discrete_laplace

Draw = Callable[[int], np.ndarray]  # a number -> that many values
OURS = {"gaussian": discrete_gaussian, "laplace": discrete_laplace}


def our_sampler(kind: str, scale: int) -> Draw:
    words = Secure().words(0)
    return lambda number: OURS[kind](words, scale, number)


def opendp_sampler(kind: str, scale: int) -> Draw:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    integers = dp.vector_domain(dp.atom_domain(T="i64"))
    if kind == "gaussian":
        measurement = dp.m.make_gaussian(integers, dp.l2_distance(T="f64"), scale=float(scale))
    else:
        measurement = dp.m.make_laplace(integers, dp.l1_distance(T="i64"), scale=float(scale))
    return lambda number: np.array(measurement([0] * number), dtype=np.int64)


def p_value(values: np.ndarray, kind: str, scale: int) -> float:
    """Return the p-value of the χ² test of values against the exact probabilities."""
    reach = 40 * scale if kind == "laplace" else 12 * scale
    x = np.arange(-reach, reach + 1)
    logs = -np.abs(x) / scale if kind == "laplace" else -(x.astype(float) ** 2) / (2 * scale**2)
    expected = len(values) * np.exp(logs) / np.exp(logs).sum()
    counts = np.bincount(np.clip(values, -reach, reach) + reach, minlength=len(x))
    starts = bins_of(expected)
    found, wanted = np.add.reduceat(counts, starts), np.add.reduceat(expected, starts)
    return float(stats.chisquare(found, wanted * len(values) / wanted.sum()).pvalue)


def bins_of(expected: np.ndarray, least: float = 20.0) -> list[int]:
    """Return where bins of neighbouring values start: each has at least so many expected draws."""
    starts, total = [0], 0.0
    for place, number in enumerate(expected):
        if total >= least:
            starts, total = [*starts, place], 0.0
        total += number
    return starts if total >= least else starts[:-1]


def measure(kind: str, scale: int, number: int, repeats: int) -> dict[str, Any]:
    samplers = {"ours": our_sampler(kind, scale), "opendp": opendp_sampler(kind, scale)}
    seconds: dict[str, list[float]] = {name: [] for name in samplers}
    drawn: dict[str, list[np.ndarray]] = {name: [] for name in samplers}
    for _ in range(repeats):
        for name, draw in samplers.items():
            began = time.process_time()
            drawn[name].append(draw(number))
            seconds[name].append(time.process_time() - began)
    row: dict[str, Any] = {"noise": kind, "scale": scale, "draws": number * repeats}
    for name in samplers:
        values = np.concatenate(drawn[name])
        row[name] = {
            "p_value": p_value(values, kind, scale),
            "seconds_per_million": statistics.median(seconds[name]) * 1e6 / number,
        }
    return row


def main() -> None:
    arguments = parse_arguments(__doc__, "opendp_samplers")
    number, repeats = (20_000, 2) if arguments.quick else (200_000, 10)
    cases = [(kind, scale) for kind in OURS for scale in (2, 40, 1000, 2**16)]
    rows = [measure(kind, scale, number, repeats) for kind, scale in cases]
    header = ["noise", "scale", "p ours", "p opendp", "s per million, ours", "opendp", "opendp / ours"]
    cells = []
    for row in rows:
        ours, theirs = row["ours"], row["opendp"]
        values = [ours["p_value"], theirs["p_value"], ours["seconds_per_million"]]
        values += [theirs["seconds_per_million"], theirs["seconds_per_million"] / ours["seconds_per_million"]]
        cells.append([row["noise"], str(row["scale"]), *(f"{value:.3g}" for value in values)])
    print_table(header, cells)
    write_result(arguments, {"opendp": importlib.metadata.version("opendp"), "rows": rows})


if __name__ == "__main__":
    main()
