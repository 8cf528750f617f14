"""Folders in Hugging Face format: which weights are taken from them, and which folders are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_folders import ALL, NUM_TOKENS, build, transformers

from antiphon.data.huggingface_folder import WAVE_FRAME
from antiphon.models.huggingface.lora import LoraAdapter
from antiphon.models.huggingface.speech_models import HuggingFaceConfig


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
        ("wav2vec2", {"prompt": ("<|en|>",)}, (WAVE_FRAME, 10), "no decoder for a prompt"),
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
