"""Beam search over many utterances: N-best lists of any model, in batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch

from antiphon.data.batches import unlabelled_batches
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
from antiphon.models.transducer import Transducer

BATCH_SECONDS = 120.0


class Beam(Protocol):
    """Searches with one kind of model."""

    def nbest(self, model: Any, tokens: Tokens, batch: Any) -> list[tuple[Hypothesis, ...]]: ...


def beam_for(
    model: Model, width: int, fusion: Fusion | None = None, penalties: Penalties = Penalties()
) -> Beam:
    """The search that fits a model; `fusion` brings a language model into it."""
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
                "the tokens of a Hugging Face decoder are not parted into words: rank its lists with "
                "`antiphon rescore` instead of giving a language model to the search"
            )
        return AttentionBeam(width)
    raise ValueError(f"there is no beam search for a {type(model).__name__}")


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
    for chosen, batch in unlabelled_batches(store, indices, BATCH_SECONDS):
        found = beam.nbest(model, tokens, batch.to(device))
        for index, hypotheses in zip(chosen.tolist(), found, strict=True):
            yield NBest(
                store.id(index),
                hypotheses,
                store.text(index),
                store.speaker(index),
                store.session(index),
                store.split(index),
            )
        done += len(chosen)
        progress(done, len(indices))
