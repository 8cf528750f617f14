"""An exact beam search for transducers, to compare fast searches with.

It goes from token to token over all frames at once. It holds α(t, y) of a prefix y at every frame (A. Graves,
"Sequence Transduction with Recurrent Neural Networks", 2012, eq. 16), so the acoustic score of a hypothesis
is ln p(tokens | speech) in full, the negative of `Transducer.losses`, at any width. The width decides which
prefixes are extended, by their prefix probability Σ_t α(t, y) p(k | t, y), which no continuation of y k can
exceed (the prefix search of A. Graves et al., ICML 2006, §3.2, for transducers). A search that never had to
drop a prefix for lack of width has found the best hypotheses.

| symbol | name here |
| --- | --- |
| y, k | a prefix: its `place` in `Prefixes`; a token |
| α(t, y) | `alpha` (ln) |
| α(t, y) p(k ∣ t, y) | `entering` (ln): with it the prefix y k begins at frame t |

With a language model scores are those of `fusion`; there, a bonus for words may let a continuation exceed
the prefix probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.data.batches import Batch
from antiphon.data.tokens import BOUNDARY, Tokens
from antiphon.decoding.beams.prefixes import Prefixes, highest, hypotheses, speller_for
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.nbest import Hypothesis
from antiphon.models.rnnt_loss import running_sum
from antiphon.models.transducer import Transducer


@dataclass(frozen=True)
class ExactTransducerBeam:
    """`nbest` gives up to `width` hypotheses an utterance with their full likelihoods, best first.

    As with greedy search, no hypothesis has more than the model's `symbols_per_frame` tokens a frame.
    """

    width: int = 8
    fusion: Fusion | None = None

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"a beam needs a width of at least 1, not {self.width}")

    @torch.inference_mode()
    def nbest(self, model: Transducer, tokens: Tokens, batch: Batch) -> list[tuple[Hypothesis, ...]]:
        """Hypotheses of each utterance of the batch. Call `model.eval()` first."""
        frames, lengths = model.listen(batch)
        speller = speller_for(self.fusion, tokens)
        found = []
        for own, length in zip(frames, lengths.tolist(), strict=True):
            prefixes = Prefixes(speller)
            finished = self._search(model, own[: max(length, 1)], prefixes)
            found.append(hypotheses(finished, prefixes, tokens))
        return found

    def _search(self, model: Transducer, frames: Tensor, prefixes: Prefixes) -> dict[int, float]:
        """The likeliest of all that ends somewhere: place -> ln p(tokens | frames [T, joint_dim])."""
        finished: dict[int, float] = {}
        scores: dict[int, float] = {}
        places = [0]
        contexts = torch.zeros(1, model.config.context, dtype=torch.int64, device=frames.device)
        entering = frames.new_full((1, len(frames)), -torch.inf, dtype=torch.float64)
        entering[0, 0] = 0.0
        for _ in range(model.config.symbols_per_frame * len(frames) + 1):
            log_probs = model.classify(frames, model.predict(contexts)[:, None]).double().log_softmax(dim=-1)
            alpha = _alpha(entering, log_probs[..., BOUNDARY])
            ended = (alpha[:, -1] + log_probs[:, -1, BOUNDARY]).tolist()
            for place, acoustic in zip(places, ended, strict=True):
                finished[place] = acoustic
                scores[place] = acoustic + prefixes.final_bonus(place)
            kept = sorted(finished, key=lambda place: -scores[place])[: self.width]
            finished = {place: finished[place] for place in kept}
            worth = scores[kept[-1]] if len(kept) == self.width else -np.inf
            rows, symbols = self._extensions(alpha, log_probs, places, prefixes, worth)
            if not len(rows):
                break
            places = [prefixes.child(places[row], int(k)) for row, k in zip(rows, symbols, strict=True)]
            row, symbol = (torch.from_numpy(chosen).to(frames.device) for chosen in (rows, symbols))
            entering = alpha[row] + log_probs[row, :, symbol]
            contexts = torch.cat((contexts[row, 1:], symbol[:, None]), dim=1)
        return finished

    def _extensions(
        self, alpha: Tensor, log_probs: Tensor, places: list[int], prefixes: Prefixes, worth: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which prefixes and tokens to go on with: those that may still end up above `worth`."""
        reached = torch.logsumexp(alpha[..., None] + log_probs, dim=1).cpu().numpy()  # [K, V]
        current, extended = prefixes.bonuses(np.array(places), np.arange(1, reached.shape[1]))
        scores = reached + np.concatenate([current[:, None], extended], axis=1)
        scores[:, BOUNDARY] = -np.inf
        best = highest(scores.ravel(), self.width)
        best = best[np.argsort(-scores.ravel()[best], kind="stable")]
        return np.divmod(best[scores.ravel()[best] > worth], scores.shape[1])


def _alpha(entering: Tensor, blank: Tensor) -> Tensor:
    """ln α [K, T] of prefixes that begin with `entering` [K, T] at each frame and wait by `blank` [K, T]."""
    waited = F.pad(running_sum(blank)[:, :-1], (1, 0))  # as in `rnnt_loss`
    return torch.logcumsumexp(entering - waited, dim=-1) + waited
