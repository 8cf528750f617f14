"""Hugging Face networks: what they give is what `transformers` gives, and what every model promises holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_folders import ALL, CTC, FRAMES, NUM_TOKENS, PROMPT, SEQ2SEQ, TOKENS, build, stock, transformers
from torch import nn

from antiphon.data.batches import Batch
from antiphon.data.huggingface_folder import (
    WAVE_FRAME,
    HuggingFaceFeatures,
    HuggingFaceTokensConfig,
    exchanged,
)
from antiphon.decoding.search import beam_for
from antiphon.models.huggingface.speech_models import HuggingFaceConfig
from antiphon.models.noise import Dropout, noise_from

BatchOf = Callable[..., Batch]


@pytest.fixture(params=ALL)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(name: str, folders: dict[str, str]) -> Any:
    return build(folders[name], name)


# --- The same as in transformers ------------------------------------------------------------------


@pytest.mark.parametrize("name", CTC)
def test_probabilities_and_losses_of_ctc_are_those_of_transformers(
    name: str, folders: dict[str, str], utterances: BatchOf
) -> None:
    batch, theirs = utterances([17], [[6, 2, 6]]), stock(folders[name])
    theirs.config.ctc_loss_reduction = "sum"
    labels = torch.tensor([[6, 2, 6]])
    found = theirs(batch.features.flatten(1), labels=labels)
    log_probs, lengths = build(folders[name], name)(batch)
    expected = F.log_softmax(found.logits, dim=-1)
    order = [exchanged(id, boundary=3) for id in range(expected.shape[-1])]
    torch.testing.assert_close(log_probs, expected[..., order], rtol=0, atol=1e-10)
    assert lengths.tolist() == [expected.shape[1]]
    loss = build(folders[name], name).losses(batch)
    torch.testing.assert_close(loss[0], found.loss.double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_losses_of_a_decoder_are_those_of_transformers(
    name: str, folders: dict[str, str], utterances: BatchOf
) -> None:
    batch, model = utterances([17], [[6, 2, 6]]), build(folders[name], name)
    values = model.inputs(batch)[0]
    found = stock(folders[name])(values, labels=torch.tensor([[6, 2, 6, 1]]))
    torch.testing.assert_close(model.losses(batch)[0], 4 * found.loss.double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", SEQ2SEQ)
@pytest.mark.parametrize("prompt", [(), PROMPT], ids=["start", "prompt"])
def test_greedy_spelling_is_that_of_transformers(
    name: str, prompt: tuple[str, ...], folders: dict[str, str], utterances: BatchOf
) -> None:
    model, theirs = build(folders[name], name, prompt=prompt), stock(folders[name])
    seen: set[int] = set()
    for seed in range(5):
        torch.manual_seed(seed)
        with torch.no_grad():  # larger weights: or it would spell one token over and over
            for mine, other in zip(model.network.parameters(), theirs.parameters(), strict=True):
                other.copy_(mine.add_(0.5 * torch.randn_like(mine)))
        batch = utterances([13], [[1]], seed=seed)
        found = theirs.generate(
            model.inputs(batch)[0],
            decoder_input_ids=torch.tensor([model.prompt]),
            do_sample=False,
            num_beams=1,
            max_new_tokens=min(model.inputs.num_output_frames(13), model.max_tokens),
        )
        row = found[0].tolist()
        row = row[len(model.prompt) :] if row[: len(model.prompt)] == list(model.prompt) else row
        spelled = row[: row.index(1)] if 1 in row else row
        assert model.greedy(batch) == [[exchanged(id, boundary=1) for id in spelled]]
        seen |= set(spelled)
    assert len(seen) > 3


def test_tokens_that_the_folder_suppresses_are_never_chosen(folders: dict[str, str]) -> None:
    model = build(folders["whisper"], "whisper")
    for first, never in ((True, {8, 9}), (False, {9})):
        allowed = model._allowed(torch.zeros(1, NUM_TOKENS), first)[0]
        assert set(torch.nonzero(allowed == -torch.inf).flatten().tolist()) == never


# --- The promises ---------------------------------------------------------------------------------


def test_an_utterance_scores_the_same_alone_and_in_a_padded_batch(model: Any, utterances: BatchOf) -> None:
    together = model.losses(utterances(FRAMES, TOKENS, padding=6))
    alone = [model.losses(utterances([n], [t])) for n, t in zip(FRAMES, TOKENS, strict=True)]
    assert (together - torch.cat(alone)).abs().max() < 1e-10


def test_texts_of_one_utterance_score_as_they_do_alone(model: Any, utterances: BatchOf) -> None:
    texts = [[1, 2], [3, 1, 4], [5, 1, 2], [2]]
    spelled, heard = utterances([17] * 4, texts), utterances(FRAMES[:2], [[1], [1]])
    together = replace(heard, tokens=spelled.tokens, token_lengths=spelled.token_lengths)
    alone = [model.losses(utterances([FRAMES[place // 2]], [text])) for place, text in enumerate(texts)]
    assert (model.losses(together) - torch.cat(alone)).abs().max() < 1e-10


def test_in_single_precision_it_scores_the_same_to_five_digits(model: Any, utterances: BatchOf) -> None:
    def single(*arguments: Any, **more: Any) -> Batch:
        batch = utterances(*arguments, **more)
        return replace(batch, features=batch.features.float())

    model.float()
    together = model.losses(single(FRAMES, TOKENS, padding=6))
    alone = torch.cat([model.losses(single([n], [t])) for n, t in zip(FRAMES, TOKENS, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def test_an_utterance_is_transcribed_the_same_alone_and_in_a_padded_batch(
    model: Any, utterances: BatchOf
) -> None:
    together = model.greedy(utterances(FRAMES, TOKENS, padding=6))
    assert together == [model.greedy(utterances([n], [t]))[0] for n, t in zip(FRAMES, TOKENS, strict=True)]
    assert any(together)
    assert all(token != 0 for tokens in together for token in tokens)


def test_the_gradient_of_a_batch_is_the_sum_of_its_utterances_gradients(
    model: Any, utterances: BatchOf
) -> None:
    parameters = [p for p in model.parameters() if p.requires_grad]

    def gradient(batch: Batch) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(model.losses(batch).sum(), parameters)

    together = gradient(utterances(FRAMES, TOKENS, padding=6))
    alone = [gradient(utterances([n], [t])) for n, t in zip(FRAMES, TOKENS, strict=True)]
    for whole, *parts in zip(together, *alone, strict=True):
        assert (whole - sum(parts)).abs().max() < 1e-9


def test_what_stands_in_the_padding_changes_nothing(model: Any, utterances: BatchOf) -> None:
    batch = utterances(FRAMES, TOKENS, padding=3)
    features, tokens = batch.features.clone(), batch.tokens.clone()
    for i in range(len(FRAMES)):
        features[i, FRAMES[i] :] = float("nan")
        tokens[i, len(TOKENS[i]) :] = 5
    dirty = replace(batch, features=features, tokens=tokens)
    assert torch.equal(model.losses(dirty), model.losses(batch))
    assert model.greedy(dirty) == model.greedy(batch)
    gradients = torch.autograd.grad(
        model.losses(dirty).sum(), [p for p in model.parameters() if p.requires_grad]
    )
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_while_training_noise_is_the_utterance_s_own_and_nothing_else_is_drawn(
    model: Any, name: str, utterances: BatchOf
) -> None:
    def losses(batch: Batch, *keys: int) -> torch.Tensor:
        with noise_from(torch.tensor(keys, dtype=torch.int32)):
            found: torch.Tensor = model.losses(batch)
        return found

    model.train()
    before = torch.get_rng_state()
    together = losses(utterances(FRAMES[:2], TOKENS[:2]), 5, 6)
    alone = losses(utterances(FRAMES[1:2], TOKENS[1:2]), 6)
    assert torch.equal(torch.get_rng_state(), before)
    assert (together[1] - alone[0]).abs() < 1e-10
    other = losses(utterances(FRAMES[1:2], TOKENS[1:2]), 7)
    assert bool(other != alone) == (name in CTC)  # Whisper and Moonshine have no dropout modules
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())
    assert any(isinstance(module, Dropout) for module in model.modules()) == (name in CTC)


def test_nothing_fits_without_frames_or_tokens(model: Any) -> None:
    assert model.fits(10, [1])
    assert not model.fits(0, [1])
    assert not model.fits(10, [])
    assert not model.fits(3, [1] * 70)  # more than frames, or than a decoder's positions


def test_a_placeholder_of_one_frame_has_a_finite_loss(model: Any, utterances: BatchOf) -> None:
    batch = utterances([1], [[]])
    batch = replace(batch, features=torch.zeros_like(batch.features))
    assert model.losses(batch).isfinite().all()


# --- What goes in and comes out -------------------------------------------------------------------


def test_log_mel_frames_and_silence_are_those_of_the_extractor(folders: dict[str, str]) -> None:
    frontend, model = HuggingFaceFeatures(folders["whisper"]), build(folders["whisper"], "whisper")
    whole = transformers.AutoFeatureExtractor.from_pretrained(folders["whisper"])
    generator = torch.Generator().manual_seed(0)
    for num_samples, loudness in ((8000, 0.3), (12345, 1e-7), (32000, 0.1)):
        samples = (loudness * torch.randn(num_samples, generator=generator)).numpy()
        expected = whole(samples, sampling_rate=16000, return_tensors="pt").input_features
        frames = torch.from_numpy(frontend.load()(samples))
        assert len(frames) == min(200, -(-(num_samples + 200) // 160))
        lengths = torch.tensor([len(frames)])
        none = torch.zeros(1, 0, dtype=torch.int64)
        given, _ = model.inputs(Batch(frames[None], lengths, none, torch.tensor([0]), (0,)))
        torch.testing.assert_close(given, expected, rtol=0, atol=1e-6)


def test_texts_are_learnt_through_the_folder_s_tokens(folders: dict[str, str]) -> None:
    folder = folders["wav2vec2"]
    tokens = HuggingFaceTokensConfig(folder, capitals=True).fit(["bad cab"], None)
    model: Any = HuggingFaceConfig(folder).build(HuggingFaceFeatures(folder).dim, tokens.size)
    torch.manual_seed(0)
    features = torch.randn(2, 12, WAVE_FRAME)
    texts = [tokens.encode("bad cab"), tokens.encode("dad")]
    ids = torch.zeros(2, 7, dtype=torch.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    batch = Batch(features, torch.tensor([12, 9]), ids, torch.tensor([7, 3]), (0, 1))
    optimizer = torch.optim.Adam(model.eval().parameters(), lr=1e-2)
    for _ in range(12):
        for _ in range(25):
            optimizer.zero_grad()
            model.losses(batch).mean().backward()
            optimizer.step()
        if (heard := [tokens.decode(row) for row in model.greedy(batch)]) == ["bad cab", "dad"]:
            break
    assert heard == ["bad cab", "dad"]


@pytest.mark.parametrize("name", CTC)
def test_a_prefix_beam_of_one_spells_as_greedy_does(
    name: str, model: Any, folders: dict[str, str], utterances: BatchOf
) -> None:
    tokens = HuggingFaceTokensConfig(folders[name], capitals=True).fit([], None)
    batch = utterances(FRAMES, TOKENS)
    found = beam_for(model, width=1).nbest(model, tokens, batch)
    assert [list(hypotheses[0].tokens) for hypotheses in found] == model.greedy(batch)
