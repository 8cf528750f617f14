"""Attention of utterances that a model recognises itself, as it is left beside the scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from world import FRONTEND, MODELS, World

from antiphon.experiment.score import attend, attention_of, score, spread
from antiphon.models.las import Las
from antiphon.recognizer import Blueprint, Recognizer


def talkative(world: World) -> Las:
    """A new model that goes on until it is cut off."""
    model = world.runtime("las").model
    assert isinstance(model, Las)
    with torch.no_grad():
        model.output.bias[0] = -9.0
    return model


def test_utterances_are_spread_over_speakers_and_of_about_the_median_length(world: World) -> None:
    indices = world.store.where("pool")
    found = spread(world.store, indices)
    assert sorted(found) == sorted(indices.tolist())
    speakers = [world.store.speaker(index) for index in found]
    assert speakers[:8] == sorted(set(speakers))
    middle = np.median(world.store.num_frames[indices])
    for speaker, first in zip(speakers[:8], found, strict=False):
        lengths = world.store.num_frames[world.store.where("pool", [speaker])]
        assert abs(world.store.num_frames[first] - middle) == np.abs(lengths - middle).min()


def test_attention_is_that_of_the_tokens_greedy_search_finds(world: World) -> None:
    model, indices = talkative(world), world.store.where("test").tolist()
    for index, weights in attend(model, world.store, indices).items():
        num_frames = model.encoder.num_output_frames(int(world.store.num_frames[index]))
        assert weights.shape == (num_frames, num_frames)  # cut off at one token a frame
        assert np.allclose(weights.sum(axis=1), 1.0, atol=1e-5)


def test_scores_of_an_attention_model_come_with_its_attention_and_without_texts(
    world: World, tmp_path: Path
) -> None:
    recognizer = Recognizer(Blueprint(FRONTEND, MODELS["las"]), world.tokens, talkative(world))
    indices = world.store.where("test")
    for name in ("one", "two"):
        score(recognizer, world.store, indices, tmp_path / name, {"split": "test"})
    written = (tmp_path / "one" / "attention.json").read_text()
    assert written == (tmp_path / "two" / "attention.json").read_text()
    body = json.loads(written)
    assert body["num_utterances"] == len(indices)
    assert 0.0 <= body["monotonic"] <= 1.0
    assert {example["speaker"] for example in body["examples"]} == set(world.store.speakers("test"))
    assert not any(world.store.text(int(index)) in written for index in indices)


def test_a_model_that_says_nothing_leaves_no_attention(world: World, tmp_path: Path) -> None:
    model = talkative(world)
    with torch.no_grad():
        model.output.bias[0] = 1e6
    assert attention_of(model, world.store, world.store.where("test")) is None


def test_a_model_without_attention_leaves_none(world: World, tmp_path: Path) -> None:
    recognizer = Recognizer(Blueprint(FRONTEND, MODELS["ctc"]), world.tokens, world.runtime("ctc").model)
    score(recognizer, world.store, world.store.where("test"), tmp_path, {})
    assert {path.name for path in tmp_path.iterdir()} == {"scores.json", "ref.trn", "hyp.trn"}
