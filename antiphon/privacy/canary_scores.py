"""What an auditor of a run sees of its canaries, and two estimates of ε from it.

- One run: T. Steinke et al., NeurIPS 2023, arXiv:2305.08846. A lower bound without assumptions
  (`one_run_audit`).
- Cosines: G. Andrew et al., "One-shot Empirical Privacy Estimation for Federated Learning", ICLR 2024,
  arXiv:2302.03098. The noise is taken to be normal; a few hundred canaries are then enough.

| Andrew et al.    | here                                                                                   |
| ---------------- | -------------------------------------------------------------------------------------- |
| c_j              | the direction of a canary, `seen`: its product with a release, in bounds               |
| g_j              | `scores`: the products of all rounds together                                          |
| μ̂, σ̂             | `measure_shift`: how far canaries in the run are from others, in standard deviations   |
| ε of N(0), N(μ)  | the ε of one Gaussian mechanism with that shift                                        |

Deviations. Releases are first multiplied by C, so that the noise of rounds is independent. Canaries that
are not in the run measure the spread, too; the paper takes it from theory. A canary with more turns moves
more: the shift is that of the canary with the most. The paper has no secret samples. For them, the shift is
that of one turn, and `measure_rate` estimates how probable a turn is: ε is accounted from both (`run_audit`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from antiphon.records.files import make_folder, write_json
from antiphon.records.reading import read_as
from antiphon.records.schema import Amount, Count

CANARIES_FOLDER = "canaries"
CANARIES_FORMAT = "antiphon-canaries/1"


@dataclass(frozen=True)
class CanaryRound:
    """A file of the folder canaries/: one round. Lists have an entry for each canary."""

    format: ClassVar = CANARIES_FORMAT
    what: ClassVar = "round with canaries"
    advice: ClassVar = "Repeat the run in another folder"
    round: Count
    epsilon: Amount  # what the run claims after this round
    delta: Amount
    rate: Amount  # of Poisson sampling; 0: turns are known
    deviation: Amount  # of the independent noise, in bounds
    coefficients: tuple[float, ...]  # of C
    included: tuple[bool, ...]  # whether a canary is in the run
    turns: tuple[bool, ...]  # whether it is its turn, in the run or not
    seen: tuple[float, ...]  # how much of it is in the released sum: 1 if it took part, and noise


def write_round(run: Path, found: CanaryRound) -> None:
    """Write what was seen of the canaries in a round; a repeated round replaces its earlier file."""
    make_folder(run / CANARIES_FOLDER)
    body = {"format": CANARIES_FORMAT, **asdict(found)}
    write_json(_path(run, found.round), body, indent=None)


def _path(run: Path, round: int) -> Path:
    return run / CANARIES_FOLDER / f"round-{round:06d}.json"


def read_rounds(run: Path) -> list[CanaryRound]:
    """Read the rounds of a run, in order; refuse a run without canaries or with gaps."""
    files = sorted((run / CANARIES_FOLDER).glob("round-*.json"))
    if not files:
        raise ValueError(f"{run} has no canaries to look for: run it with private.canaries=1000, for example")
    expected = [_path(run, number) for number in range(1, len(files) + 1)]
    if missing := [path for path in expected if path not in files]:
        raise ValueError(f"{missing[0]} is missing. {CanaryRound.advice}")
    rounds = [read_as(CanaryRound, file) for file in files]
    for number, found in enumerate(rounds, 1):
        sizes = {len(found.included), len(found.turns), len(found.seen)}
        if found.round != number or sizes != {len(rounds[0].seen)} or found.included != rounds[0].included:
            raise ValueError(f"{files[number - 1]} does not fit {files[0].name}. {CanaryRound.advice}")
    return rounds


def whitened(coefficients: Sequence[float], rows: np.ndarray) -> np.ndarray:
    """Return C times rows: the noise of the result is independent."""
    total = np.zeros_like(rows)
    for lag, coefficient in enumerate(coefficients[: len(rows)]):
        total[lag:] += coefficient * rows[: len(rows) - lag]
    return total


def log_ratios(
    seen: np.ndarray, turns: np.ndarray, coefficients: Sequence[float], deviation: float, rate: float = 0.0
) -> np.ndarray:
    """Return the log-likelihood ratio of "in the run" against "not in it". [canaries]

    seen and turns: [rounds, canaries]. With a rate, the attacker does not know the turns.
    """
    variance = deviation**2
    if rate:
        absent = np.log1p(-rate) if rate < 1 else -np.inf
        total: np.ndarray = np.logaddexp(absent, np.log(rate) + (seen - 0.5) / variance).sum(axis=0)
        return total
    signal, looked = whitened(coefficients, turns.astype(float)), whitened(coefficients, seen)
    total = (signal * (looked - signal / 2)).sum(axis=0) / variance
    return total


@dataclass(frozen=True)
class Limits:
    """An estimate, and two limits: the value is above the one and below the other, each with a confidence."""

    estimate: float
    low: float
    high: float


def measure_shift(
    seen: np.ndarray,
    turns: np.ndarray,
    included: np.ndarray,
    coefficients: Sequence[float],
    confidence: float,
    length: float = 0.0,
) -> Limits:
    """Estimate how far a canary in the run is from one that is not there, in standard deviations.

    Scores are taken to be normal, of one variance. length: that of the canary's signal, such as 1 for one
    turn; 0 stands for that of the canary with the most turns.
    """
    signal, looked = whitened(coefficients, turns.astype(float)), whitened(coefficients, seen)
    lengths = np.linalg.norm(signal, axis=0)
    used = lengths > 0
    lengths, is_in = lengths[used], included[used]
    if is_in.sum() < 2 or (~is_in).sum() < 2:
        raise ValueError("too few canaries have had a turn: use more of them, or more rounds")
    scores = (signal[:, used] * looked[:, used]).sum(axis=0) / lengths
    energy = float(np.sum(lengths[is_in] ** 2))
    slope = float(lengths[is_in] @ scores[is_in]) / energy
    residuals = scores - np.where(is_in, slope * lengths, 0.0)
    freedom = len(scores) - 1
    deviation = math.sqrt(float(residuals @ residuals) / freedom)
    length = length or float(lengths.max())
    estimate = slope * length / deviation
    error = math.sqrt(length**2 / energy + estimate**2 / (2 * freedom))
    room = NormalDist().inv_cdf(confidence) * error
    return Limits(estimate, estimate - room, estimate + room)


def measure_rate(turns: np.ndarray, confidence: float) -> Limits:
    """Estimate the probability of a turn from independent draws (score limits of E. B. Wilson, 1927).

    >>> found = measure_rate(np.array([True, False, False, False] * 25), 0.975)
    >>> [round(share, 3) for share in (found.low, found.estimate, found.high)]
    [0.175, 0.25, 0.343]
    """
    number, share = turns.size, float(turns.mean())
    z = NormalDist().inv_cdf(confidence)
    middle = (share + z**2 / (2 * number)) / (1 + z**2 / number)
    room = z / (1 + z**2 / number) * math.sqrt(share * (1 - share) / number + z**2 / (4 * number**2))
    return Limits(share, max(0.0, middle - room), min(1.0, middle + room))
