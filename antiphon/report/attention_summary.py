"""Attention of a model: how far it moves forwards from token to token, and examples to draw.

`attention.json` beside the scores of an evaluation has no text, and neither has the page: a matrix has one
row per token and one column per encoded frame. The texts are in `hyp.trn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from antiphon.records.reading import read_as
from antiphon.records.schema import Amount, Count
from antiphon.report.run_folder import Array, RunFolder

FORMAT = "antiphon-attention/1"
FILE = "attention.json"
SLACK = 0.5  # encoded frames: a centre that moves back by at most this much counts as not moving back


@dataclass(frozen=True)
class ExampleFields:
    """An example in attention.json: a matrix with a row for each token."""

    speaker: str
    seconds: Amount
    weights: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        if not self.weights or not self.weights[0] or len(set(map(len, self.weights))) > 1:
            raise ValueError("weights: expected a matrix")


@dataclass(frozen=True)
class AttentionFile:
    """attention.json: means over the utterances, and a few examples."""

    format: ClassVar = FORMAT
    advice: ClassVar = "score the model again with antiphon evaluate"
    num_utterances: Count
    monotonic: float
    span: float
    examples: Sequence[ExampleFields]


@dataclass(frozen=True)
class Example:
    """Attention of one utterance: weights [tokens, encoded frames]."""

    speaker: str
    seconds: float
    weights: Array


@dataclass(frozen=True)
class Attention:
    """Monotonicity and mean span over `num_utterances`, and a few examples."""

    num_utterances: int
    monotonic: float
    span: float
    examples: Sequence[Example]


@dataclass(frozen=True)
class AttentionRow:
    """One run of the table: attention before (if known) and after training."""

    label: str
    before: Attention | None
    after: Attention


def centres(weights: Array) -> Array:
    """Return the mean position of the attention of each token, in frames: [tokens, frames] -> [tokens].

    >>> centres(np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    array([0.5, 2. ])
    """
    positions: Array = weights @ np.arange(weights.shape[1]) / weights.sum(axis=1)
    return positions


def monotonicity(utterances: Sequence[Array]) -> float:
    """Return the share of steps from token to token, over all utterances, that do not move attention back.

    Attention that does not move at all is monotonic, too; it has no `span`.

    >>> monotonicity([np.eye(4)]), monotonicity([np.eye(4)[::-1]]), monotonicity([np.eye(4)[[0, 2, 1, 3]]])
    (1.0, 0.0, 0.6666666666666666)
    """
    moves = np.concatenate([np.diff(centres(weights)) for weights in utterances])
    return float(np.mean(moves >= -SLACK))


def span(weights: Array) -> float:
    """Return the share of the speech between the first and the last centre of attention.

    >>> span(np.eye(4)), span(np.eye(5)[1:3]), span(np.ones((3, 4)))
    (1.0, 0.25, 0.0)
    """
    return float(np.ptp(centres(weights)) / max(weights.shape[1] - 1, 1))


def load_attention(run: RunFolder, split: str, which: str) -> Attention | None:
    """Read the file of an evaluation; None for models without attention."""
    path = run.path / "evaluation" / split / which / FILE
    if not path.is_file():
        return None
    body = read_as(AttentionFile, path)
    examples = [Example(one.speaker, one.seconds, np.array(one.weights)) for one in body.examples]
    return Attention(body.num_utterances, body.monotonic, body.span, examples)


def attention_rows(runs: Sequence[RunFolder], split: str) -> list[AttentionRow]:
    """Return a row for each run whose best model has attention."""
    pairs = [(run, load_attention(run, split, "best")) for run in runs]
    return [AttentionRow(run.label, load_attention(run, split, "start"), best) for run, best in pairs if best]
