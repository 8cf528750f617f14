"""What a product would embed: a second pass that learns its owner's words, and everyone's, as it goes.

Liu and Peng, "Federated Marginal Personalization for ASR Rescoring", 2020, algorithm 1, for one device.

    personalizer = Personalizer(lm, background, alpha=0.5, beta=0.25, lam=0.5, sigma=1.0)
    best = personalizer.rescore(nbest).hypotheses[0]   # ranked by the adapted model
    personalizer.observe(nbest)                        # its words count from now on
    update = personalizer.report()                     # now and then, to the server
    personalizer.receive(q_bar)                        # and its answer

Before anything was observed or received, it ranks exactly as the background model does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antiphon.core import Task, Update
from antiphon.decoding.nbest import Hypothesis, NBest
from antiphon.lm.ngram import SentenceModel
from antiphon.lm.unigram import Unigram
from antiphon.personalisation.marginal_adaptation import AdaptedLm, Marginals, Mixture
from antiphon.personalisation.marginals import KIND, Cap, report_marginal
from antiphon.personalisation.word_cache import Cache
from antiphon.records.checkpoint import load as load_checkpoint
from antiphon.records.checkpoint import save as save_checkpoint

SCORE, ADAPTED = "score", "adapted"


@dataclass
class Personalizer:
    """A language model on a device, and what the device knows of words.

    weights: of the parts of a hypothesis, "score" being its total in the first pass, and of "adapted", the
    adapted model's ln p. The paper: {"acoustic": 1, "lm": 0.5 s, "adapted": 0.5 s} with the first pass's
    scale s.
    """

    lm: SentenceModel
    background: Unigram
    alpha: float = 0.5
    beta: float = 0.25
    lam: float = 0.5
    sigma: float = 1.0
    smoothing: float = 0.1
    agreement: float = 0.0
    weights: Mapping[str, float] = field(default_factory=lambda: {SCORE: 1.0, ADAPTED: 1.0})
    name: str = "this device"
    cap: Cap | None = None

    def __post_init__(self) -> None:
        mixture = Mixture(self.alpha, self.beta, self.lam, self.sigma, self.smoothing)
        self.marginals = Marginals(self.background, mixture)

    def rescore(self, nbest: NBest) -> NBest:
        """The list best first by the weighted sum, which becomes its score; among equals the order holds."""
        if not nbest.hypotheses:
            return nbest
        adapted = AdaptedLm(self.lm, self.background, self.marginals)
        log_probs = adapted.score_sentences([hypothesis.text for hypothesis in nbest.hypotheses])
        scored = [
            self._scored(hypothesis, float(log_prob), nbest.id)
            for hypothesis, log_prob in zip(nbest.hypotheses, log_probs, strict=True)
        ]
        return replace(nbest, hypotheses=tuple(sorted(scored, key=lambda hypothesis: -hypothesis.score)))

    def _scored(self, hypothesis: Hypothesis, log_prob: float, where: str) -> Hypothesis:
        known = {SCORE: hypothesis.score, **hypothesis.parts, ADAPTED: log_prob}
        if missing := [name for name in self.weights if name not in known]:
            raise ValueError(
                f"utterance {where!r}: a hypothesis has no {missing[0]!r}, which has a weight; "
                f"it has {', '.join(sorted(known))}"
            )
        total = sum(weight * known[name] for name, weight in self.weights.items())
        return replace(hypothesis, score=total, parts={**hypothesis.parts, ADAPTED: log_prob})

    def observe(self, nbest: NBest) -> None:
        """Counts the words of a list, by rank (eq. 3): the first pass's list, or one that was rescored."""
        own = self.marginals.client_words.observed(nbest, self.background.encode, self.sigma, self.agreement)
        self.marginals = replace(self.marginals, client_words=own)

    def report(self, task: Task | None = None) -> Update:
        """What the server may know: q_i and c_i, after the cap. `Unusable` before anything was observed."""
        own = self.marginals.client_words
        return report_marginal(self.name, own, self.background.size, task or Task(KIND), self.cap)

    def receive(self, q_bar: Tensor | np.ndarray) -> None:
        """The server's q̄ replaces the one before."""
        everyone = torch.as_tensor(q_bar).double().numpy()
        if everyone.shape != (self.background.size,) or not (everyone >= 0).all():
            raise ValueError(
                f"q̄ must hold {self.background.size} probabilities, one a word of the background; "
                f"got {everyone.shape}"
            )
        self.marginals = replace(self.marginals, shared_words=everyone)

    def save(self, folder: str | Path) -> None:
        """Writes what was learnt, whole or not at all; model and background never change and are left out."""
        known = {"ids": self.marginals.client_words.ids, "counts": self.marginals.client_words.counts}
        if self.marginals.shared_words is not None:
            known["everyone"] = self.marginals.shared_words
        tensors = {name: torch.from_numpy(values.copy()) for name, values in known.items()}
        save_checkpoint(Path(folder), tensors, {"words": self.background.digest})

    def load(self, folder: str | Path) -> None:
        """What `save` wrote, in place of what is known now. Refuses counts of another vocabulary."""
        found: tuple[dict[str, Any], dict[str, Any]] = load_checkpoint(Path(folder), {})
        tensors, notes = found
        if notes.get("words") != self.background.digest:
            raise ValueError(f"{folder} was saved with another background: its counts are of other words")
        values = {name: tensor.numpy() for name, tensor in tensors.items()}
        own = Cache(values["ids"], values["counts"])
        self.marginals = replace(self.marginals, client_words=own, shared_words=values.get("everyone"))
