"""Tiny randomly drawn models in Hugging Face format, each a folder as `save_pretrained` writes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.data.huggingface_folder import WAVE_FRAME
from antiphon.models.huggingface.speech_models import HuggingFaceConfig

transformers = pytest.importorskip("transformers")

LETTERS = "ABCDE"
NUM_TOKENS = 16
PROMPT = ("<|en|>", "<|notimestamps|>")
SPECIAL = ["<s>", "</s>", "<unk>", "<pad>", "<|start|>", *PROMPT]


def wav2vec2(norm: str = "group", **more: Any) -> Any:
    """Blank 3; a frame for 160 samples. Every way of drawing is on, to see that it is switched off."""
    return transformers.Wav2Vec2Config(**{**_wav2vec2(norm), **more})


def hubert() -> Any:
    return transformers.HubertConfig(**_wav2vec2("group"), feat_proj_layer_norm=False)


def _wav2vec2(norm: str) -> dict[str, Any]:
    return {
        "vocab_size": 5 + len(LETTERS),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 20,
        "conv_dim": (6, 6, 6),
        "conv_kernel": (10, 6, 4),
        "conv_stride": (8, 5, 4),
        "num_feat_extract_layers": 3,
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
        "feat_extract_norm": norm,
        "do_stable_layer_norm": norm == "layer",
        "pad_token_id": 3,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "layerdrop": 0.1,
        "mask_time_prob": 0.5,
        "mask_time_length": 2,
    }


def whisper() -> Any:
    """Up to 2 s of audio, end of text 1."""
    return transformers.WhisperConfig(
        vocab_size=NUM_TOKENS,
        num_mel_bins=8,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=20,
        decoder_ffn_dim=20,
        max_source_positions=100,
        max_target_positions=40,
        decoder_start_token_id=4,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=1,
        dropout=0.1,
        attention_dropout=0.1,
        encoder_layerdrop=0.1,
        suppress_tokens=[9],
        begin_suppress_tokens=[8],
    )


def moonshine() -> Any:
    return transformers.MoonshineConfig(
        vocab_size=NUM_TOKENS,
        hidden_size=16,
        intermediate_size=20,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
        max_position_embeddings=60,
        decoder_start_token_id=4,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=3,
        attention_dropout=0.1,
    )


CTC: dict[str, Callable[[], Any]] = {
    "wav2vec2": wav2vec2,
    "wav2vec2 layer norm": lambda: wav2vec2("layer"),
    "hubert": hubert,
}
SEQ2SEQ: dict[str, Callable[[], Any]] = {"whisper": whisper, "moonshine": moonshine}
ALL = {**CTC, **SEQ2SEQ}
DIMS = dict.fromkeys(ALL, WAVE_FRAME) | {"whisper": 8}
# Utterances for each of them.
FRAMES = [13, 22, 9, 17]
TOKENS = [[1, 2], [3, 3, 1, 4], [5], [6, 2, 6]]  # 3 and 1 are the boundaries of the folders


def write_folder(folder: Path, name: str, seed: int = 0) -> Path:
    """Configuration, weights, feature extractor and tokenizer of a tiny model."""
    config = ALL[name]()
    kind = (
        transformers.AutoModelForSpeechSeq2Seq if config.is_encoder_decoder else transformers.AutoModelForCTC
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = kind.from_config(config)
        with torch.no_grad():  # as drawn, all is so small that every output is the same
            for parameter in network.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    network.save_pretrained(folder)
    extractor_for(name).save_pretrained(folder)
    if config.is_encoder_decoder:
        write_subwords(folder)
    else:
        write_letters(folder)
    return folder


def extractor_for(name: str) -> Any:
    if name == "whisper":
        return transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=2)
    return transformers.Wav2Vec2FeatureExtractor(do_normalize=name != "moonshine")


def write_letters(folder: Path) -> None:
    """A tokenizer of capital letters, as wav2vec2's."""
    tokens = ["<s>", "</s>", "<unk>", "<pad>", "|", *LETTERS]
    (folder / "vocab.json").write_text(json.dumps({token: id for id, token in enumerate(tokens)}))
    transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)


def write_subwords(folder: Path) -> None:
    """A byte-level tokenizer of some small letters, as Whisper's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = [*SPECIAL, *"abcde", "Ġ", "Ġa", "ab", "cd"]
    assert len(vocabulary) == NUM_TOKENS
    merges = [("Ġ", "a"), ("a", "b"), ("c", "d")]
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(vocabulary)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        extra_special_tokens=["<|start|>", *PROMPT],
    ).save_pretrained(folder)


def build(folder: str, name: str, **settings: Any) -> Any:
    """The network of a folder as antiphon has it, in float64, not training."""
    torch.manual_seed(0)
    num_tokens = transformers.AutoConfig.from_pretrained(folder).vocab_size
    return HuggingFaceConfig(folder, **settings).build(DIMS[name], num_tokens).double().eval()


def stock(folder: str) -> Any:
    """The same weights in `transformers`' own hands, with its own attention."""
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = (
        transformers.AutoModelForSpeechSeq2Seq if config.is_encoder_decoder else transformers.AutoModelForCTC
    )
    return kind.from_pretrained(folder, attn_implementation="eager").double().eval()
