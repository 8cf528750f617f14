"""Example utterances: what was said, and what each model recognised. Only for users who ask for texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.report.tables import Result
from antiphon.scoring.trn import read_trn

Key = tuple[str, str]  # speaker, utterance


@dataclass(frozen=True)
class ExampleUtterance:
    """An utterance with its reference, and (model, text) for each model."""

    speaker: str
    utterance: str
    reference: str
    texts: Sequence[tuple[str, str]]


def example_utterances(rows: Sequence[Result], number: int) -> list[ExampleUtterance]:
    """Return up to `number` utterances, evenly spaced over all that the models have, in order of speakers.

    Models without files of transcripts are left out.
    """
    if number < 0:
        raise ValueError(f"examples: {number} is no number of utterances: it must be at least 0")
    texts = {row.label: (_read(row, "ref.trn"), _read(row, "hyp.trn")) for row in rows}
    texts = {label: pair for label, pair in texts.items() if all(pair)}
    if not texts or not number:
        return []
    references = next(iter(texts.values()))[0]
    shared = sorted(key for key in references if all(key in heard for _, heard in texts.values()))
    step = max(len(shared) / number, 1)
    chosen = [shared[int((index + 0.5) * step)] for index in range(min(number, len(shared)))]
    return [
        ExampleUtterance(*key, references[key], [(label, heard[key]) for label, (_, heard) in texts.items()])
        for key in chosen
    ]


def _read(row: Result, name: str) -> dict[Key, str]:
    path = (row.evaluation.folder or Path()) / name
    if row.evaluation.folder is None or not path.is_file():
        return {}
    return {(speaker, utterance): text for text, speaker, utterance in read_trn(path)}
