"""A device's second pass: cold start, learning, reporting, and coming back from disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.algorithms.fmp import MARGINAL, Fmp, background_params, by_pseudo_count
from antiphon.clients.client import Unusable
from antiphon.core import Task, add_up
from antiphon.decoding.nbest import Hypothesis, NBest
from antiphon.lm.kneser_ney import estimate
from antiphon.personalisation.device import ADAPTED, Personalizer
from antiphon.personalisation.marginal_adaptation import estimate_unigram
from antiphon.records.checkpoint import CorruptCheckpoint

TEXTS = ["the cat sat on the mat", "a dog sat", "the dog ran", "a cat ran to the dog"]
LM = estimate(TEXTS, order=2)
BACKGROUND = estimate_unigram(TEXTS, vocabulary=["fog"])
LIST = NBest(
    "u1",
    (
        Hypothesis("the dog sat", score=-1.0, parts={"acoustic": -5.0}),
        Hypothesis("the fog sat", score=-1.5, parts={"acoustic": -4.0}),
        Hypothesis("the zebra sat", score=-1.5, parts={"acoustic": -4.5}),
        Hypothesis("", score=-9.0, parts={"acoustic": -9.0}),
    ),
    reference="the fog sat",
)
FOGGY = NBest("u0", (Hypothesis("fog fog fog"), Hypothesis("dog")))


def fresh(**settings: object) -> Personalizer:
    return Personalizer(LM, BACKGROUND, **{"lam": 2.0, "sigma": 0.0, **settings})  # type: ignore[arg-type]


def test_a_cold_start_is_the_background_model_to_the_bit() -> None:
    log_probs = LM.score_sentences([hypothesis.text for hypothesis in LIST.hypotheses])
    expected = {h.text: h.score + p for h, p in zip(LIST.hypotheses, log_probs.tolist(), strict=True)}
    found = fresh().rescore(LIST)
    assert {h.text: h.score for h in found.hypotheses} == expected
    assert [h.text for h in found.hypotheses] == sorted(expected, key=lambda text: -expected[text])
    assert found.reference == LIST.reference
    assert {h.text: h.parts["acoustic"] for h in found.hypotheses}["the fog sat"] == -4.0


def test_what_a_client_says_comes_up_in_its_lists() -> None:
    personalizer = fresh()
    assert personalizer.rescore(LIST).hypotheses[0].text == "the dog sat"
    personalizer.observe(FOGGY)
    assert personalizer.rescore(LIST).hypotheses[0].text == "the fog sat"


def test_words_that_few_hypotheses_have_count_less_with_agreement() -> None:
    personalizer = fresh(agreement=1.0)
    personalizer.observe(FOGGY)
    assert personalizer.marginals.client_words.total == 1.5  # three words, each in one hypothesis of two


def test_so_does_what_everyone_says() -> None:
    speaker, listener = fresh(name="speaker"), fresh()
    speaker.observe(FOGGY)
    marginal = speaker.report().mean[MARGINAL]
    listener.receive(marginal)
    assert listener.rescore(LIST).hypotheses[0].text == "the fog sat"
    listener.receive(torch.from_numpy(BACKGROUND.probabilities))
    np.testing.assert_allclose(listener.marginals.log_factors(np.arange(BACKGROUND.size)), 0.0, atol=1e-12)


def test_reports_of_devices_make_the_pooled_unigram() -> None:
    devices = [fresh(name=name) for name in "ab"]
    devices[0].observe(FOGGY)
    devices[1].observe(NBest("u", (Hypothesis("the dog zebra"),)))
    total = add_up(device.report().weighted_by(by_pseudo_count) for device in devices)
    counts = total.mean[MARGINAL] * np.exp(total.log_weight)
    words = dict(zip(BACKGROUND.words, counts.tolist(), strict=True))
    assert {w: c for w, c in words.items() if c} == pytest.approx({"<unk>": 1, "dog": 1, "fog": 3, "the": 1})
    assert [report.client for report in total.reports] == ["a", "b"]


def test_a_report_can_be_a_difference_and_is_capped() -> None:
    device = fresh(cap=lambda counts: counts / counts.sum())
    device.observe(FOGGY)
    update = device.report(
        Task("marginal", background_params(BACKGROUND.probabilities.tolist()), {"differences": True})
    )
    assert update.reports[0].stats["pseudo_count"] == pytest.approx(1.0)
    assert float(update.mean[MARGINAL].sum()) == pytest.approx(0.0, abs=1e-12)


def test_an_empty_list_stays_empty_and_teaches_nothing() -> None:
    personalizer, nothing = fresh(), NBest("u", ())
    assert personalizer.rescore(nothing) is nothing
    personalizer.observe(nothing)
    with pytest.raises(Unusable, match="heard no word"):
        personalizer.report()


def test_hypotheses_that_read_the_same_keep_their_order() -> None:
    twice = replace(LIST, hypotheses=(LIST.hypotheses[0], LIST.hypotheses[0], LIST.hypotheses[1]))
    found = fresh().rescore(twice)
    assert [h.text for h in found.hypotheses] == ["the dog sat", "the dog sat", "the fog sat"]


def test_weights_are_of_parts_and_of_the_adapted_model() -> None:
    personalizer = fresh(weights={"acoustic": 1.0, ADAPTED: 0.0})
    assert personalizer.rescore(LIST).hypotheses[0].text == "the fog sat"
    with pytest.raises(ValueError, match="utterance 'u1': a hypothesis has no 'lm', which has a weight"):
        fresh(weights={"lm": 1.0}).rescore(LIST)


def test_settings_are_checked_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="alpha and beta"):
        fresh(alpha=0.9, beta=0.9)


@pytest.mark.parametrize("bad", [torch.zeros(3), torch.full((BACKGROUND.size,), -0.1)])
def test_a_marginal_that_cannot_be_is_refused(bad: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="one for each word of the background"):
        fresh().receive(bad)


# --- On disk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("heard", [True, False])
def test_what_was_learnt_survives_to_the_bit(tmp_path: Path, heard: bool) -> None:
    personalizer = fresh(sigma=1.0)
    if heard:
        personalizer.observe(FOGGY)
        personalizer.receive(BACKGROUND.probabilities[::-1].copy())
    personalizer.save(tmp_path / "mine")
    again = fresh(sigma=1.0)
    again.load(tmp_path / "mine")
    assert again.rescore(LIST) == personalizer.rescore(LIST)
    again.observe(LIST), personalizer.observe(LIST)
    assert again.marginals.client_words.counts.tolist() == personalizer.marginals.client_words.counts.tolist()


def test_saving_again_replaces_what_was_there(tmp_path: Path) -> None:
    personalizer = fresh()
    personalizer.save(tmp_path / "mine")
    personalizer.observe(FOGGY)
    personalizer.save(tmp_path / "mine")
    again = fresh()
    again.load(tmp_path / "mine")
    assert again.marginals.client_words.total == 3.0
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_counts_of_other_words_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    personalizer = fresh()
    personalizer.observe(FOGGY)
    personalizer.save(tmp_path / "mine")
    other = Personalizer(LM, estimate_unigram(["something else"]))
    with pytest.raises(ValueError, match="another background"):
        other.load(tmp_path / "mine")
    text = (tmp_path / "mine" / "state.json").read_text()
    (tmp_path / "mine" / "state.json").write_text(text.replace("ids", "idz"))
    with pytest.raises(CorruptCheckpoint, match="damaged"):
        personalizer.load(tmp_path / "mine")
    assert json.loads(text.split("\n")[1])["notes"]["words"] == BACKGROUND.digest


def test_a_whole_federation_of_devices() -> None:
    """Two rounds through the server's half: who never says fog learns it from the one who does."""
    from antiphon.personalisation.word_cache import MarginalWorker
    from antiphon.pools.local import LocalPool

    devices = {name: fresh(name=name) for name in ("foggy", "quiet")}
    state = Fmp().init(background_params(BACKGROUND.probabilities.tolist()))
    for _ in range(2):
        devices["foggy"].observe(FOGGY)
        caches = {name: device.marginals.client_words for name, device in devices.items()}
        state, _ = Fmp().round(state, list(devices), LocalPool(MarginalWorker(caches, BACKGROUND.size)))
        for device in devices.values():
            device.receive(state.params[MARGINAL])
    assert devices["quiet"].rescore(LIST).hypotheses[0].text == "the fog sat"
