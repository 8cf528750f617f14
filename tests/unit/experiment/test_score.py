from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from antiphon.experiment import score as scoring
from antiphon.experiment.score import Tally, score
from antiphon.records.reading import read_object
from antiphon.records.schema import checked
from antiphon.scoring.normalisation import Normalisation
from antiphon.scoring.trn import read_trn

SAID = ["the cat", "a dog", "Yes", "no no"]
HEARD = ["the hat", "a dog", "yes", "no"]
STORE = SimpleNamespace(
    text=lambda i: SAID[i],
    speaker=lambda i: "anna" if i < 3 else "bert",
    session=lambda i: ["x", "x", "y", "x"][i],
    id=lambda i: f"u{i}",
    seconds=np.ones(4),
)


@pytest.fixture
def scored(monkeypatch, tmp_path):
    """Scores of a recogniser that hears `HEARD`."""
    monkeypatch.setattr(scoring, "recognise", lambda *arguments, **options: dict(enumerate(HEARD)))
    recognizer = SimpleNamespace(model=torch.nn.Linear(1, 1), tokens=None)

    def run(*options):
        return score(recognizer, STORE, np.arange(4), tmp_path, {"split": "test"}, *options)

    return run


def counts(substitutions, deletions, insertions, length):
    return {
        "substitutions": substitutions,
        "deletions": deletions,
        "insertions": insertions,
        "length": length,
    }


def test_errors_are_pooled_by_session_speaker_and_all(scored, tmp_path):
    scores = scored()
    body = read_object(tmp_path / "scores.json")
    assert scores == {key: value for key, value in body.items() if key != "files"}
    anna, bert = scores["speakers"]["anna"], scores["speakers"]["bert"]
    assert anna["sessions"]["x"]["words"] == counts(1, 0, 0, 4)
    assert anna["sessions"]["y"]["words"] == counts(1, 0, 0, 1)
    assert (anna["words"], anna["num_utterances"]) == (counts(2, 0, 0, 5), 3)
    assert bert["words"] == bert["sessions"]["x"]["words"] == counts(0, 1, 0, 2)  # another x than anna's
    assert (scores["words"], scores["num_utterances"]) == (counts(2, 1, 0, 7), 4)
    assert scores["characters"] == counts(2, 3, 0, 7 + 5 + 3 + 5)


def test_normalisation_is_done_and_recorded_and_texts_are_kept_as_they_are(scored, tmp_path):
    scores = scored(Normalisation(lower_case=True))
    assert scores["words"] == counts(1, 1, 0, 7)
    assert checked(Normalisation, scores["normalisation"]) == Normalisation(lower_case=True)
    assert ("Yes", "anna", "u2") in read_trn(tmp_path / "ref.trn")


def test_by_default_texts_are_scored_as_they_are(scored):
    assert checked(Normalisation, scored()["normalisation"]) == Normalisation()


def test_tallies_add_up():
    assert sum([Tally.of("a b", "a"), Tally.of("c", "c")], Tally()).words.rate == pytest.approx(1 / 3)
