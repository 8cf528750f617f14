"""Recognition of many utterances, in batches of similar length: greedy, by beam search, or of given texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.data.batches import Batch, Utterances, padded_tokens, unlabelled_batches
from antiphon.data.store import FeatureStore
from antiphon.data.tokens import Tokens
from antiphon.decoding.beams.attention_beam import AttentionBeam, Penalties
from antiphon.decoding.beams.ctc_beam import CtcBeam
from antiphon.decoding.beams.transducer_beam import TransducerBeam
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.nbest import Hypothesis, NBest
from antiphon.models.ctc import Framewise
from antiphon.models.huggingface.speech_models import HuggingFaceSeq2Seq
from antiphon.models.las import Las
from antiphon.models.model import Model
from antiphon.models.rnnt_loss import next_log_probs, rnnt_losses
from antiphon.models.transducer import Transducer

BATCH_SECONDS, BEAM_BATCH_SECONDS = 240.0, 120.0  # of speech in a batch
IMPOSSIBLE = -1e4  # ln p of a text without an alignment: finite, so that a weight of 0 removes it


@torch.inference_mode()
def recognise(
    model: Model,
    tokens: Tokens,
    store: Utterances,
    indices: np.ndarray,
    device: torch.device | str = "cpu",
    feed: Callable[[np.ndarray], Batch] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[int, str]:
    """The greedy transcript of each utterance, by its index in the store.

    A batch is read from the store, or from a feed (`antiphon.data.batches`) that has it on the device.
    """
    model.eval()
    texts = {}
    for chosen, batch in unlabelled_batches(store, indices, BATCH_SECONDS, feed):
        for index, ids in zip(chosen, model.greedy(batch if feed else batch.to(device)), strict=True):
            texts[int(index)] = tokens.decode(ids)
        progress(len(texts), len(indices))
    return {int(index): texts[int(index)] for index in indices}


class Beam(Protocol):
    """Searches with one kind of model."""

    def nbest(self, model: Any, tokens: Tokens, batch: Any) -> list[tuple[Hypothesis, ...]]: ...


def beam_for(
    model: Model, width: int, fusion: Fusion | None = None, penalties: Penalties = Penalties()
) -> Beam:
    """The search that fits a model; `fusion` adds a language model.

    A model of another package may bring its own search with a method `beam(width, fusion, penalties)`.
    """
    if (make := getattr(model, "beam", None)) is not None:
        own: Beam = make(width, fusion, penalties)
        return own
    if isinstance(model, Las):
        return AttentionBeam(width, penalties, fusion)
    if penalties != Penalties():
        raise ValueError(
            "length normalisation, token bonus and coverage are for attention models: "
            f"a {type(model).__name__} has no use for them; leave them at 0"
        )
    if isinstance(model, Framewise):
        return CtcBeam(width, fusion=fusion)
    if isinstance(model, Transducer):
        return TransducerBeam(width, model.config.symbols_per_frame, fusion)
    if isinstance(model, HuggingFaceSeq2Seq):
        if fusion is not None:
            raise ValueError(
                "the tokens of a Hugging Face decoder are not split into words: rank its lists with "
                "`antiphon rescore` instead of giving a language model to the search"
            )
        return AttentionBeam(width)
    raise ValueError(
        f"there is no beam search for a {type(model).__name__}: "
        "give it a method beam(width, fusion, penalties)"
    )


def search(
    model: Model,
    tokens: Tokens,
    store: FeatureStore,
    indices: np.ndarray,
    beam: Beam,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[NBest]:
    """The N-best list of each utterance, from the shortest to the longest."""
    model.eval()
    done = 0
    for chosen, batch in unlabelled_batches(store, indices, BEAM_BATCH_SECONDS):
        lists = beam.nbest(model, tokens, batch.to(device))
        for index, hypotheses in zip(chosen.tolist(), lists, strict=True):
            about = store.text(index), store.speaker(index), store.session(index), store.split(index)
            yield NBest(store.id(index), hypotheses, *about)
        done += len(chosen)
        progress(done, len(indices))


@torch.inference_mode()
def likelihoods(model: Model, batch: Batch, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """ln p of texts, as tokens, given the one utterance of the batch, over all alignments: [n].

    The speech is encoded once for all texts. Call `model.eval()` first.
    """
    assert len(batch) == 1
    tokens, token_lengths = (tensor.to(batch.features.device) for tensor in padded_tokens(texts))
    if isinstance(model, Transducer):
        losses = _transducer_losses(model, batch, tokens, token_lengths)
    else:
        losses = model.losses(replace(batch, tokens=tokens, token_lengths=token_lengths))
    return np.maximum(-losses.double().cpu().numpy(), IMPOSSIBLE)


def _transducer_losses(model: Transducer, batch: Batch, tokens: Tensor, token_lengths: Tensor) -> Tensor:
    """`Transducer.losses` of many texts; the joint network runs once for equal contexts and next tokens."""
    frames, lengths = model.listen(batch)
    size = model.config.context
    contexts = F.pad(tokens, (size, 0)).unfold(1, size, 1)
    nodes = torch.cat(
        (contexts, F.pad(tokens, (0, 1))[..., None]), dim=-1
    )  # [n, U + 1, context and next token]
    unique, inverse = nodes.flatten(0, 1).unique(dim=0, return_inverse=True)
    # One more node, whose next token `next_log_probs` leaves out.
    states = model.predict(F.pad(unique[None, :, :-1], (0, 0, 0, 1)))
    weight, bias = model.output.weight, model.output.bias
    blank, label = next_log_probs(frames, states, weight, bias, unique[None, :, -1])
    inverse = inverse.view(nodes.shape[:2])
    blank, label = blank[0, :, inverse].transpose(0, 1), label[0, :, inverse[:, :-1]].transpose(0, 1)
    return rnnt_losses(blank, label, lengths.expand(len(tokens)), token_lengths)
