"""LoRA in Hugging Face networks: adapters alone are trained, and merged the network is an ordinary one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_folders import CTC, FRAMES, TOKENS, build, stock, transformers

from antiphon.data.batches import Batch
from antiphon.data.huggingface_folder import WAVE_FRAME
from antiphon.models.huggingface.lora import LoraAdapter, merged
from antiphon.models.huggingface.speech_models import HuggingFaceConfig

BatchOf = Callable[..., Batch]


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
