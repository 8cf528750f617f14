"""What an attention model looks at while it spells: how far attention goes forwards, and examples to draw.

`attention.json` beside an evaluation's scores holds no text, as the page shows none: a matrix has a row a
token and a column an encoded frame. The texts are in `hyp.trn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.report.run_folder import Array, RunFolder, read_json

FORMAT = "antiphon-attention/1"
FILE = "attention.json"
SLACK = 0.5  # encoded frames: a centre that falls back by no more stands still


@dataclass(frozen=True)
class Example:
    """Attention of one utterance: weights [tokens, encoded frames]."""

    speaker: str
    seconds: float
    weights: Array


@dataclass(frozen=True)
class Attention:
    """Over `num_utterances`: the share of steps that do not go back, and how much of the speech they span."""

    num_utterances: int
    monotonic: float
    span: float
    examples: Sequence[Example]


def centres(weights: Array) -> Array:
    """Where the attention of each token lies on average, in frames: [tokens, frames] -> [tokens].

    >>> centres(np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    array([0.5, 2. ])
    """
    places: Array = weights @ np.arange(weights.shape[1]) / weights.sum(axis=1)
    return places


def monotonicity(many: Sequence[Array]) -> float:
    """Share of steps from token to token, of all utterances together, that do not take attention back.

    Attention that stands still counts as monotonic: `span` tells it from one that follows the speech.

    >>> monotonicity([np.eye(4)]), monotonicity([np.eye(4)[::-1]]), monotonicity([np.eye(4)[[0, 2, 1, 3]]])
    (1.0, 0.0, 0.6666666666666666)
    """
    moves = np.concatenate([np.diff(centres(weights)) for weights in many])
    return float(np.mean(moves >= -SLACK))


def span(weights: Array) -> float:
    """The part of the speech between the first and the last place that attention was centred on.

    >>> span(np.eye(4)), span(np.eye(5)[1:3]), span(np.ones((3, 4)))
    (1.0, 0.25, 0.0)
    """
    return float(np.ptp(centres(weights)) / max(weights.shape[1] - 1, 1))


def load_attention(run: RunFolder, split: str, which: str) -> Attention | None:
    """What an evaluation has left; None for models without attention."""
    path = run.path / "evaluation" / split / which / FILE
    if not path.is_file():
        return None
    body = read_json(path, FORMAT)
    try:
        examples = [
            Example(str(one["speaker"]), float(one["seconds"]), np.array(one["weights"], dtype=np.float64))
            for one in body["examples"]
        ]
        if any(example.weights.ndim != 2 or example.weights.size == 0 for example in examples):
            raise ValueError("weights that are no matrix")
        return Attention(int(body["num_utterances"]), float(body["monotonic"]), float(body["span"]), examples)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} lacks or mistypes {error}; the file is damaged") from None


@dataclass(frozen=True)
class Row:
    """One run in a table, before (where it is known) and after training."""

    label: str
    before: Attention | None
    after: Attention


def attention_rows(runs: Sequence[RunFolder], split: str) -> list[Row]:
    """The runs whose best model attends."""
    rows = []
    for run in runs:
        after = load_attention(run, split, "best")
        if after is not None:
            rows.append(Row(run.label, load_attention(run, split, "start"), after))
    return rows
