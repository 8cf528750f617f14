"""Hugging Face networks: what they give is what `transformers` gives, and what every model promises holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_folders import ALL, CTC, NUM_TOKENS, PROMPT, SEQ2SEQ, transformers, write_folder
from torch import nn

from antiphon.data.batches import Batch
from antiphon.data.huggingface import WAVE_FRAME, HuggingFaceFeatures, HuggingFaceTokensConfig, exchanged
from antiphon.decoding.search import beam_for
from antiphon.models.huggingface import HuggingFaceConfig
from antiphon.models.lora import LoraAdapter, merged
from antiphon.models.noise import Dropout, drawing

FRAMES = [13, 22, 9, 17]
TOKENS = [[1, 2], [3, 3, 1, 4], [5], [6, 2, 6]]  # 3 and 1 are the boundaries of the folders
DIMS = dict.fromkeys(ALL, WAVE_FRAME) | {"whisper": 8}

BatchOf = Callable[..., Batch]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: str(write_folder(tmp_path_factory.mktemp("folder"), name)) for name in ALL}


def build(folder: str, name: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    num_tokens = transformers.AutoConfig.from_pretrained(folder).vocab_size
    return HuggingFaceConfig(folder, **settings).build(DIMS[name], num_tokens).double().eval()


@pytest.fixture(params=ALL)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(name: str, folders: dict[str, str]) -> Any:
    return build(folders[name], name)


@pytest.fixture
def utterances(name: str, batch_of: BatchOf) -> BatchOf:
    """Random utterances as the model takes them."""
    return lambda *arguments, **more: batch_of(*arguments, dim=DIMS[name], **more)


def stock(folder: str) -> Any:
    """The same weights in `transformers`' own hands, with its own attention."""
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = (
        transformers.AutoModelForSpeechSeq2Seq if config.is_encoder_decoder else transformers.AutoModelForCTC
    )
    return kind.from_pretrained(folder, attn_implementation="eager").double().eval()


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
            max_new_tokens=min(model.inputs.num_output_frames(13), model.most_tokens),
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
        with drawing(torch.tensor(keys, dtype=torch.int32)):
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


# --- Folders --------------------------------------------------------------------------------------


def test_without_weights_parameters_are_drawn_by_the_seed(folders: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((Path(folders["wav2vec2"]) / "config.json").read_bytes())
    first, second = build(str(tmp_path), "wav2vec2"), build(str(tmp_path), "wav2vec2")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    torch.manual_seed(1)
    third = HuggingFaceConfig(str(tmp_path)).build(WAVE_FRAME, 10)
    assert not torch.equal(next(third.parameters()).double(), next(first.parameters()))


def test_a_fresh_output_layer_is_for_tokens_of_one_s_own(folders: dict[str, str]) -> None:
    folder, kept = folders["wav2vec2"], build(folders["wav2vec2"], "wav2vec2")
    for num_tokens in (7, 10):  # 10 is what the folder's own output layer has: it must not be kept
        fresh: Any = HuggingFaceConfig(folder, fresh_output=True).build(WAVE_FRAME, num_tokens).double()
        assert fresh.boundary == 0
        assert fresh.network.lm_head.out_features == num_tokens
        assert not torch.equal(fresh.network.lm_head.weight[:7], kept.network.lm_head.weight[:7])
        layer = "wav2vec2.encoder.layers.0.attention.q_proj.weight"
        assert torch.equal(fresh.network.get_parameter(layer), kept.network.get_parameter(layer))


@pytest.mark.parametrize(
    ("name", "settings", "shape", "message"),
    [
        ("wav2vec2", {}, (WAVE_FRAME, 11), "has 10 tokens, not 11: take the folder's own"),
        ("wav2vec2", {}, (80, 10), "takes waveforms, not features of 80 dimensions"),
        ("wav2vec2", {"prompt": ("<|en|>",)}, (WAVE_FRAME, 10), "no decoder to be told a prompt"),
        ("wav2vec2", {"lora": LoraAdapter(targets=("nothing",))}, (WAVE_FRAME, 10), "lora.targets nothing"),
        ("whisper", {}, (80, NUM_TOKENS), "log-mel frames of 8 bins, not features of 80"),
        ("whisper", {"fresh_output": True}, (8, NUM_TOKENS), "fresh_output is for CTC models"),
        ("whisper", {"prompt": ("<|xx|>",)}, (8, NUM_TOKENS), "has no token '<|xx|>'"),
    ],
    ids=["tokens", "features", "prompt", "targets", "bins", "fresh", "unknown prompt"],
)
def test_what_does_not_fit_a_folder_is_refused(
    name: str, settings: dict[str, Any], shape: tuple[int, int], message: str, folders: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match=message.replace("|", r"\|")):
        HuggingFaceConfig(folders[name], **settings).build(*shape)


def test_a_missing_folder_and_pickled_weights_are_refused(folders: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist: give the folder of a saved model"):
        HuggingFaceConfig(str(tmp_path / "none")).build(WAVE_FRAME, 10)
    with pytest.raises(ValueError, match="holds no model"):
        HuggingFaceConfig(str(tmp_path)).build(WAVE_FRAME, 10)
    (tmp_path / "config.json").write_bytes((Path(folders["wav2vec2"]) / "config.json").read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="pickled"):
        HuggingFaceConfig(str(tmp_path)).build(WAVE_FRAME, 10)


def test_weights_without_an_output_layer_take_a_fresh_one(tmp_path: Path) -> None:
    transformers.Wav2Vec2Model(ALL["wav2vec2"]()).save_pretrained(tmp_path)
    assert HuggingFaceConfig(str(tmp_path), fresh_output=True).build(WAVE_FRAME, 7)
    with pytest.raises(ValueError, match=r"lack lm_head\.bias \(2 missing\)"):
        HuggingFaceConfig(str(tmp_path)).build(WAVE_FRAME, 10)


def test_running_statistics_are_refused(tmp_path: Path) -> None:
    config = transformers.HubertConfig(**{**ALL["hubert"]().to_dict(), "conv_pos_batch_norm": True})
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"running statistics \(.*batch_norm\)"):
        HuggingFaceConfig(str(tmp_path)).build(WAVE_FRAME, 10)


def test_other_architectures_are_tried_out_and_refused_if_padding_changes_a_score(tmp_path: Path) -> None:
    settings = {key: value for key, value in ALL["wav2vec2"]().to_dict().items() if key != "model_type"}
    transformers.UniSpeechConfig(**settings).save_pretrained(tmp_path / "good")
    assert HuggingFaceConfig(str(tmp_path / "good")).build(WAVE_FRAME, 10).training
    transformers.WavLMConfig(**settings).save_pretrained(tmp_path / "bad")
    with pytest.raises(ValueError, match=r"\(wavlm\) scores an utterance differently in a padded batch"):
        HuggingFaceConfig(str(tmp_path / "bad")).build(WAVE_FRAME, 10)


# --- LoRA -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wav2vec2", "whisper", "moonshine"])
def test_adapters_alone_are_trained_and_can_be_merged(
    name: str, folders: dict[str, str], utterances: BatchOf
) -> None:
    batch = utterances(FRAMES, TOKENS, padding=2)
    plain, adapted = build(folders[name], name), build(folders[name], name, lora=LoraAdapter(rank=2))
    assert torch.equal(adapted.losses(batch), plain.losses(batch))  # B is zero
    trained = {n: p for n, p in adapted.named_parameters() if p.requires_grad}
    assert all(".lora_" in n for n in trained)
    # q and v of each attention: A [2, 16] and B [16, 2]; decoder layers have two attentions.
    num_attentions = 2 if name in CTC else 2 + 2 * 2
    assert sum(p.numel() for p in trained.values()) == num_attentions * 2 * (2 * 16 + 16 * 2)
    with torch.no_grad():
        for parameter in trained.values():
            parameter.normal_()
    losses = adapted.losses(batch)
    assert (losses - plain.losses(batch)).abs().min() > 1e-3
    adapted.network = merged(adapted.network)
    assert [n for n, _ in adapted.named_parameters()] == [n for n, _ in plain.named_parameters()]
    torch.testing.assert_close(adapted.losses(batch), losses, rtol=1e-9, atol=1e-9)


def test_with_a_fresh_output_layer_that_one_is_trained_too(folders: dict[str, str]) -> None:
    config = HuggingFaceConfig(folders["wav2vec2"], LoraAdapter(rank=1), fresh_output=True)
    model: Any = config.build(WAVE_FRAME, 6)
    others = {n for n, p in model.named_parameters() if p.requires_grad and ".lora_" not in n}
    assert others == {"network.lm_head.weight", "network.lm_head.bias"}


def test_a_merged_network_is_saved_as_a_folder_for_transformers(
    folders: dict[str, str], tmp_path: Path, batch_of: BatchOf
) -> None:
    config = HuggingFaceConfig(folders["wav2vec2"], LoraAdapter(rank=2), fresh_output=True)
    model: Any = config.build(WAVE_FRAME, 6).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 if parameter.requires_grad else 0.0)
    exported: Any = merged(model.network)
    exported.save_pretrained(tmp_path)
    batch = batch_of([15], [[1]], dim=WAVE_FRAME)
    logits = stock(str(tmp_path))(batch.features.flatten(1)).logits
    torch.testing.assert_close(model(batch)[0], F.log_softmax(logits, dim=-1), rtol=0, atol=1e-6)
    assert transformers.AutoConfig.from_pretrained(tmp_path).vocab_size == 6


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
