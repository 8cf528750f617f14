"""Exported graphs compute what the PyTorch model computes, for utterances of any length and in batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from exported_models import CONFIGS, FRONTEND, TEXTS, Case, recording
from torch.nn.utils.rnn import pad_sequence

from antiphon.data.batches import Batch
from antiphon.data.frontends import Filterbank
from antiphon.exporting.graphs import Features
from antiphon.models.las import Las
from antiphon.models.transducer import Transducer

Exported = Callable[[str], Case]
every_model = pytest.mark.parametrize("name", CONFIGS)
TOLERANCE = 1e-4


def as_trained(energies: torch.Tensor) -> torch.Tensor:
    return Features(FRONTEND.dim, normalise=True)(energies[None], torch.tensor([len(energies)]))


def batches() -> list[tuple[np.ndarray, Batch]]:
    """Energies as graphs take them, and batches as the model takes them: each text alone, then all."""
    energies = Filterbank(FRONTEND.dim, normalise=False).load()
    inputs = [torch.from_numpy(energies(recording(text))) for text in TEXTS]
    frames = [as_trained(energies)[0] for energies in inputs]
    made = []
    for rows in [[number] for number in range(len(TEXTS))] + [list(range(len(TEXTS)))]:
        lengths = torch.tensor([len(frames[row]) for row in rows])
        tokens = torch.tensor([[2, 4, 3, 5]] * len(rows))
        batch = Batch(
            pad_sequence([frames[row] for row in rows], batch_first=True),
            lengths,
            tokens,
            torch.full((len(rows),), 4),
            tuple(rows),
        )
        made.append((pad_sequence([inputs[row] for row in rows], batch_first=True).numpy(), batch))
    return made


@every_model
def test_log_probabilities_are_those_of_the_model(exported: Exported, name: str) -> None:
    case = exported(name)
    model: Any = case.recognizer.model
    graphs = case.transcriber().graphs
    for x, batch in batches():
        with torch.no_grad():
            if isinstance(model, Transducer):
                mine, theirs = transducer_outputs(model, graphs, x, batch)
            elif isinstance(model, Las):
                mine, theirs = las_outputs(model, graphs, x, batch)
            else:
                mine, theirs = ctc_outputs(model, graphs, x, batch)
        assert len(mine) == len(theirs) == len(batch)
        for ours, other in zip(mine, theirs, strict=True):
            assert ours.shape == other.shape
            difference = torch.log_softmax(ours, -1) - torch.log_softmax(torch.from_numpy(other), -1)
            assert difference.abs().max() < TOLERANCE


def ctc_outputs(
    model: Any, graphs: dict[str, Any], x: np.ndarray, batch: Batch
) -> tuple[list[Any], list[Any]]:
    log_probs, lengths = model(batch)
    outputs, found = graphs["model"].run(None, {"x": x, "x_length": batch.feature_lengths.numpy()})
    assert found.tolist() == lengths.tolist()
    rows = enumerate(found)
    return zip(*((log_probs[row, :n], outputs[row, :n]) for row, n in rows), strict=True)  # type: ignore


def transducer_outputs(
    model: Transducer, graphs: dict[str, Any], x: np.ndarray, batch: Batch
) -> tuple[list[Any], list[Any]]:
    """Logits of the first frames after two labels."""
    frames, lengths = model.listen(batch)
    outputs, found = graphs["encoder"].run(None, {"x": x, "x_lens": batch.feature_lengths.numpy()})
    assert found.tolist() == lengths.tolist()
    context = batch.tokens[:, :2]
    state = graphs["decoder"].run(None, {"y": context.numpy()})[0]
    rows = [
        graphs["joiner"].run(None, {"encoder_out": outputs[:, t], "decoder_out": state})[0]
        for t in range(int(lengths.min()))
    ]
    expected = model.classify(frames[:, : len(rows)], model.predict(context)[:, None])
    return list(expected), list(np.stack(rows, axis=1))


def las_outputs(
    model: Las, graphs: dict[str, Any], x: np.ndarray, batch: Batch
) -> tuple[list[Any], list[Any]]:
    """Logits of every token of the batch and of the end."""
    frames, keys, lengths = graphs["encoder"].run(None, {"x": x, "x_lens": batch.feature_lengths.numpy()})
    mask = np.arange(frames.shape[1]) < lengths[:, None]
    states = np.zeros((model.config.decoder_layers, len(batch), model.config.decoder_dim), np.float32)
    context = np.zeros((len(batch), frames.shape[2]), np.float32)
    state = [states, states, context, (mask / mask.sum(axis=1, keepdims=True)).astype(np.float32)]
    steps = []
    for last in [torch.zeros(len(batch), dtype=torch.int64), *batch.tokens.T]:
        names = ("hidden", "carry", "context", "attention")
        inputs = {"token": last.numpy(), "frames": frames, "keys": keys, "lengths": lengths}
        logits, *state = graphs["decoder"].run(None, inputs | dict(zip(names, state, strict=True)))
        steps.append(logits)
    (expected,) = model(batch)
    return list(expected), list(np.stack(steps, axis=1))


def test_a_label_before_the_first_may_be_written_as_minus_one(exported: Exported) -> None:
    """sherpa-onnx does so."""
    graph = exported("transducer").transcriber().graphs["decoder"]
    minus, zero = (graph.run(None, {"y": np.array([[label, 3]])})[0] for label in (-1, 0))
    assert np.array_equal(minus, zero)


def test_features_are_those_that_the_model_was_trained_on() -> None:
    """Both are in float16; the order of a sum moves a few values by one step."""
    energies, trained_on = Filterbank(80, normalise=False).load(), Filterbank(80).load()
    for text in TEXTS:
        found = as_trained(torch.from_numpy(energies(recording(text))))[0]
        expected = torch.from_numpy(trained_on(recording(text))).half().float()
        torch.testing.assert_close(found, expected, rtol=2**-10, atol=2**-17)
        assert (found != expected).float().mean() < 0.01


def test_a_silent_utterance_has_finite_features() -> None:
    found = as_trained(torch.full((30, FRONTEND.dim), -15.9))
    assert torch.equal(found, torch.zeros_like(found))
