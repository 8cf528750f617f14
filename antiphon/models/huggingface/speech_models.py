"""Speech models in Hugging Face format as client models: CTC (wav2vec2, HuBERT), and encoders with a decoder.

A. Baevski et al., "wav2vec 2.0", NeurIPS 2020; W.-N. Hsu et al., "HuBERT", 2021; A. Radford et al., "Robust
Speech Recognition via Large-Scale Weak Supervision" (Whisper), 2022; N. Jeffries et al., "Moonshine", 2024.

The networks are those of the package `transformers`; `network` says how they are changed. Scores, greedy
search and the rest of a `Model` are ours. Deviation: audio is cut into frames of 20 ms, so a waveform may get
up to 20 ms of zeros at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.data.batches import Batch, repeated
from antiphon.data.huggingface_folder import architecture, boundary_of, copy_descriptions, library, opened
from antiphon.models.ctc import Framewise, ctc_fits
from antiphon.models.huggingface.lora import LoraAdapter
from antiphon.models.huggingface.network import (
    Inputs,
    Lengths,
    LogMel,
    Waveform,
    WithNetwork,
    make_batch_invariant,
    open_network,
    padded,
)
from antiphon.models.layers import Scored, at_least_float32, next_token_losses, next_tokens, spell_greedily
from antiphon.models.model import MODELS

# Types of models whose padding our tests check; others are checked when they are built.
TESTED = {"wav2vec2", "hubert", "whisper", "moonshine"}


@MODELS.register
@dataclass(frozen=True)
class HuggingFaceConfig:
    """A local folder in Hugging Face format: config.json and safetensors; weights are drawn if it has none.

    With `lora`, only adapters (and a fresh output layer) are trained and sent.
    """

    folder: str
    lora: LoraAdapter | None = None
    fresh_output: bool = False  # CTC: a new output layer, for tokens that are not the folder's own
    prompt: tuple[str, ...] = ()  # tokens after the start token of the decoder, such as <|en|>
    why_whole: ClassVar[str] = "a Hugging Face model cannot be pruned here: take ctc, las or transducer"

    def packed(self, folder: Path) -> HuggingFaceConfig:
        """Copy all but the weights of the Hugging Face folder into a model's folder, which can be moved."""
        copy_descriptions(self.folder, folder / "network")
        return replace(self, folder="network")

    def unpacked(self, folder: Path) -> HuggingFaceConfig:
        return replace(self, folder=str(folder / self.folder))

    def build(self, input_dim: int, num_tokens: int) -> HuggingFaceCtc | HuggingFaceSeq2Seq:
        config = architecture(self.folder)
        if not self.fresh_output and config.vocab_size != num_tokens:
            raise ValueError(
                f"the model in {self.folder} has {config.vocab_size} tokens, not {num_tokens}: take the "
                "folder's own (tokens=hugging_face_tokens), or model.fresh_output=true for a CTC model"
            )
        is_seq2seq = config.is_encoder_decoder
        model = self._seq2seq(config, input_dim) if is_seq2seq else self._ctc(config, input_dim, num_tokens)
        if config.model_type not in TESTED:
            check_padding(model, input_dim, f"the model in {self.folder} ({config.model_type})")
        return model

    def _ctc(self, config: Any, input_dim: int, num_tokens: int) -> HuggingFaceCtc:
        if self.prompt:
            raise ValueError("a CTC model has no decoder for a prompt: leave model.prompt empty")
        config.mask_time_prob = config.mask_feature_prob = 0.0  # no masks, so no unused parameter for them
        fresh = "lm_head." if self.fresh_output else None
        network = open_network(library().AutoModelForCTC, self.folder, config, fresh)
        if not hasattr(network.base_model, "feature_extractor") or getattr(config, "add_adapter", False):
            raise ValueError(
                f"the model in {self.folder} ({config.model_type}) is not built like wav2vec2 or HuBERT: "
                "convolutions on samples, then a transformer, then the output layer"
            )
        if self.fresh_output:
            network.lm_head = nn.Linear(network.lm_head.in_features, num_tokens)
            network.config.vocab_size, network.config.pad_token_id = num_tokens, 0
        self._finish(network, fresh)
        inputs = Waveform.of(network.base_model.feature_extractor, input_dim)
        return HuggingFaceCtc(network, inputs, boundary_of(network.config))

    def _seq2seq(self, config: Any, input_dim: int) -> HuggingFaceSeq2Seq:
        if self.fresh_output:
            raise ValueError("model.fresh_output is for CTC models: a decoder is used with its own tokens")
        network = open_network(library().AutoModelForSpeechSeq2Seq, self.folder, config)
        encoder, is_spectral = network.get_encoder(), hasattr(config, "num_mel_bins")
        if is_spectral:  # Whisper's sinusoids are not trained: `from_pretrained` of transformers forgets that
            encoder.embed_positions.requires_grad_(False)
        self._finish(network, fresh=None)
        inputs = LogMel.of(encoder, config, input_dim) if is_spectral else Waveform.of(encoder, input_dim)
        return HuggingFaceSeq2Seq(network, inputs, self._prompt_ids(config), boundary_of(config))

    def _finish(self, network: nn.Module, fresh: str | None) -> None:
        make_batch_invariant(network, self.folder)
        if self.lora is not None:
            self.lora.inject(network)
            for name, parameter in network.named_parameters():
                if fresh is not None and name.startswith(fresh):
                    parameter.requires_grad_()

    def _prompt_ids(self, config: Any) -> tuple[int, ...]:
        tokenizer = opened(library().AutoTokenizer, self.folder, "tokenizer") if self.prompt else None
        ids = tokenizer.get_vocab() if tokenizer else {}
        if unknown := [token for token in self.prompt if token not in ids]:
            raise ValueError(f"model.prompt: the tokenizer in {self.folder} has no token {unknown[0]!r}")
        return (int(config.decoder_start_token_id), *(ids[token] for token in self.prompt))


def check_padding(model: HuggingFaceCtc | HuggingFaceSeq2Seq, input_dim: int, what: str) -> None:
    """Refuse a model that scores an utterance differently alone and in a padded batch.

    The longest utterance is not padded: its difference is the rounding error of the model.
    """
    lengths, generator = torch.tensor([10, 15, 20, 25, 30]), torch.Generator().manual_seed(0)
    features = torch.randn(len(lengths), 30, input_dim, generator=generator)
    ones = torch.ones(len(lengths), 1, dtype=torch.int64)

    def scored(rows: slice) -> Tensor:
        num_frames, indices = int(lengths[rows].max()), tuple(range(len(lengths))[rows])
        batch = Batch(features[rows, :num_frames], lengths[rows], ones[rows], ones[rows, 0], indices)
        return model.losses(batch)

    model.eval()
    with torch.no_grad():
        alone = torch.cat([scored(slice(row, row + 1)) for row in range(len(lengths))])
        difference = (scored(slice(None)) - alone).abs()
    model.train()
    if not difference.max() <= 10 * difference[-1] + 1e-6 * alone.abs().max():
        by = f"by {float(difference.max()):.2g}"
        raise ValueError(f"{what} scores an utterance differently in a padded batch ({by}): choose another")


class HuggingFaceCtc(WithNetwork, Framewise):
    """A network with an output layer over frames; the folder's blank is token 0 here."""

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """Log probabilities [B, T', num_tokens] and numbers of real frames [B]."""
        values, lengths = self.inputs(batch)
        with padded(lengths):
            logits = exchanged_columns(self.network(values).logits, self.boundary)
        return F.log_softmax(at_least_float32(logits), dim=-1), lengths.frames

    def fits(self, num_frames: int, tokens: Sequence[int]) -> bool:
        return ctc_fits(self.inputs.num_output_frames(num_frames), tokens)


def exchanged_columns(logits: Tensor, boundary: int) -> Tensor:
    """The folder's columns [..., num_tokens] in our order: 0 and the boundary are exchanged.

    >>> exchanged_columns(torch.tensor([10, 11, 12, 13]), boundary=2)
    tensor([12, 11, 10, 13])
    """
    if boundary == 0:
        return logits
    first, between, blank, after = logits.tensor_split((1, boundary, boundary + 1), dim=-1)
    return torch.cat((blank, between, first, after), dim=-1)


@dataclass(frozen=True)
class Encoded:
    """The output of the encoder, the lengths of utterances, and the largest numbers of tokens [B]."""

    memory: Any  # of a class of transformers: last_hidden_state [B, T', dim]
    lengths: Lengths
    limits: Tensor

    def repeated(self, times: int) -> Encoded:
        """Every utterance `times` times, one copy after another."""
        memory = type(self.memory)(last_hidden_state=repeated(self.memory.last_hidden_state, times))
        return Encoded(memory, self.lengths.repeated(times), repeated(self.limits, times))


class HuggingFaceSeq2Seq(WithNetwork, Scored):
    """A network that predicts token after token; the folder's end of text is token 0 here."""

    def __init__(self, network: Any, inputs: Inputs, prompt: tuple[int, ...], boundary: int) -> None:
        super().__init__(network, inputs, boundary)
        self.prompt, config = prompt, network.config
        positions = getattr(config, "max_target_positions", None) or config.max_position_embeddings
        self.max_tokens = positions - len(prompt)  # the end of the text is predicted, but not read

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """Logits [B · N, U + 1, num_tokens] of every next token, in the folder's order."""
        tokens = next_tokens(batch.tokens, batch.token_lengths)[:, :-1]
        before = torch.cat((self._prompts(tokens), self._exchanged(tokens)), dim=1)
        values, lengths = self.inputs(batch)
        encoded = Encoded(self._encode(values, lengths), lengths, lengths.frames).repeated(batch.num_texts)
        with padded(encoded.lengths):
            step = self.network(encoder_outputs=encoded.memory, decoder_input_ids=before, use_cache=False)
        return (at_least_float32(step.logits[:, len(self.prompt) - 1 :]),)

    def score(self, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        """Cross entropy of each text in nats, summed over its tokens and its end: [B · N]."""
        targets = self._exchanged(next_tokens(batch.tokens, batch.token_lengths))
        return next_token_losses(outputs[0], targets, batch.token_lengths)

    @torch.no_grad()
    def greedy(self, batch: Batch) -> list[list[int]]:
        """The best token after the best tokens so far, at most `max_tokens` and one per frame."""
        encoded = self.listen(batch)
        return spell_greedily(encoded.limits, lambda last, cache: self.spell(encoded, last, cache), None)

    def listen(self, batch: Batch) -> Encoded:
        values, lengths = self.inputs(batch)
        frames = [self.inputs.num_output_frames(int(n)) for n in batch.feature_lengths]
        limits = torch.tensor(frames, device=batch.features.device).clamp(max=self.max_tokens)
        return Encoded(self._encode(values, lengths), lengths, limits)

    def spell(self, encoded: Encoded, last: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """ln p of the next token [B, num_tokens] after the last, [B], and the next cache.

        Without a cache, the prompt is read instead of the last token. Tokens that the folder's
        generation_config.json suppresses are at −∞.
        """
        before = self._prompts(encoded.limits) if cache is None else self._exchanged(last)[:, None]
        inputs = {"encoder_outputs": encoded.memory, "decoder_input_ids": before, "past_key_values": cache}
        with padded(encoded.lengths):
            step = self.network(**inputs, use_cache=True)
        log_probs = at_least_float32(step.logits[:, -1]).log_softmax(dim=-1)
        allowed = self._allowed(log_probs, first=cache is None)
        return exchanged_columns(allowed, self.boundary), step.past_key_values

    def fits(self, num_frames: int, tokens: Sequence[int]) -> bool:
        """Any tokens fit any frames, up to the number of positions of the decoder."""
        return 1 <= len(tokens) <= self.max_tokens and self.inputs.num_output_frames(num_frames) >= 1

    def _encode(self, values: Tensor, lengths: Lengths) -> Any:
        with padded(lengths):
            return self.network.get_encoder()(values)

    def _prompts(self, tokens: Tensor) -> Tensor:
        """The prompt for every row of the batch, [B, prompt], without a copy to the GPU."""
        return torch.cat([tokens.new_full((len(tokens), 1), id) for id in self.prompt], dim=1)

    def _exchanged(self, tokens: Tensor) -> Tensor:
        """Convert our tokens to the folder's, or back: exchange 0 and the boundary."""
        zero, boundary = tokens == 0, tokens == self.boundary
        return tokens.masked_fill(zero, self.boundary).masked_fill(boundary, 0)

    def _allowed(self, log_probs: Tensor, first: bool) -> Tensor:
        """ln p [B, num_tokens], folder's order, with −∞ for suppressed tokens."""
        settings = self.network.generation_config
        suppressed = list(settings.suppress_tokens or ())
        if first:
            suppressed += list(settings.begin_suppress_tokens or ())
        forbidden = torch.zeros(log_probs.shape[-1], dtype=torch.bool, device=log_probs.device)
        forbidden[suppressed] = True
        return log_probs.masked_fill(forbidden, -torch.inf)
