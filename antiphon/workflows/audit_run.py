"""Audit a private run: compare what it claims with what an attacker finds of its canaries."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from antiphon.privacy.canary_scores import read_rounds
from antiphon.privacy.run_audit import RunAudit, SeenCanaries, audit_canaries


def audit(run: str | Path, *, confidence: float = 0.95) -> RunAudit:
    """Compare the ε that a private run claims with what an attacker finds of its canaries.

    Args:
        run: The folder of a run with `private.canaries`, such as out/fedavg. It need not be finished.
        confidence: A run that keeps its claim is not refuted with at least this probability.

    Example:
        found = antiphon.audit("out/fedavg")
        print(found.claimed, found.at_least, found.verdict)
    """
    rounds = read_rounds(Path(run))
    last = rounds[-1]
    canaries = SeenCanaries(
        np.array([found.seen for found in rounds]),
        np.array([found.turns for found in rounds]),
        np.array(last.included),
        last.coefficients,
        last.deviation,
        last.rate,
    )
    return audit_canaries(canaries, last.epsilon, last.delta, confidence)
