"""ln p(text | speech) of given texts: what one recogniser thinks of another's hypotheses.

The likelihood is summed over all alignments of a text's tokens, as in training. The speech is heard once for
all texts. A transducer's prediction network sees the last few tokens only, and the hypotheses of a list share
most of them, so the joint network is asked once for every context and next token that occurs in the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.data.batches import Batch, padded_tokens
from antiphon.models.model import Model
from antiphon.models.rnnt_loss import next_log_probs, rnnt_losses
from antiphon.models.transducer import Transducer

IMPOSSIBLE = -1e4  # ln p of a text without an alignment: finite, so that a weight of 0 leaves it out


@torch.inference_mode()
def likelihoods(model: Model, batch: Batch, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """ln p of each of these texts, as tokens, in the one utterance of the batch: [n]. Call `eval()` first."""
    assert len(batch) == 1
    tokens, token_lengths = (tensor.to(batch.features.device) for tensor in padded_tokens(texts))
    if isinstance(model, Transducer):
        losses = _transducer_losses(model, batch, tokens, token_lengths)
    else:
        losses = model.losses(replace(batch, tokens=tokens, token_lengths=token_lengths))
    return np.maximum(-losses.double().cpu().numpy(), IMPOSSIBLE)


def _transducer_losses(model: Transducer, batch: Batch, tokens: Tensor, token_lengths: Tensor) -> Tensor:
    """As `Transducer.losses` has them, of many texts of one utterance."""
    frames, lengths = model.listen(batch)
    size = model.config.context
    contexts = F.pad(tokens, (size, 0)).unfold(1, size, 1)
    nodes = torch.cat(
        (contexts, F.pad(tokens, (0, 1))[..., None]), dim=-1
    )  # and the next token: [n, U + 1, ·]
    unique, places = nodes.flatten(0, 1).unique(dim=0, return_inverse=True)
    # One node more, whose next token is left out by `next_log_probs`.
    states = model.predict(F.pad(unique[None, :, :-1], (0, 0, 0, 1)))
    weight, bias = model.output.weight, model.output.bias
    blank, label = next_log_probs(frames, states, weight, bias, unique[None, :, -1])
    places = places.view(nodes.shape[:2])
    blank, label = blank[0, :, places].transpose(0, 1), label[0, :, places[:, :-1]].transpose(0, 1)
    return rnnt_losses(blank, label, lengths.expand(len(tokens)), token_lengths)
