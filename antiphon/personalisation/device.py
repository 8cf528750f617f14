"""Personalisation on a device: a second pass that learns the words of its user and of all users.

Liu and Peng, "Federated Marginal Personalization for ASR Rescoring", 2020, algorithm 1, for one device.

    personalizer = Personalizer(lm, background, alpha=0.5, beta=0.25, lam=0.5, sigma=1.0)
    best = personalizer.rescore(nbest).hypotheses[0]   # ranked by the adapted model
    personalizer.observe(nbest)                        # its words count from now on
    update = personalizer.report()                     # sent to the server in some rounds
    personalizer.receive(q_bar)                        # the server's answer

Before anything is observed or received, it ranks exactly as the background model does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antiphon.algorithms.fmp import MARGINAL
from antiphon.core import Task, Update
from antiphon.decoding.nbest import Hypothesis, NBest
from antiphon.lm.ngram import SentenceModel
from antiphon.personalisation.marginal_adaptation import AdaptedLm, Marginals, Mixture, Unigram
from antiphon.personalisation.word_cache import Cache, Cap, report_marginal
from antiphon.records.checkpoint import load as load_checkpoint
from antiphon.records.checkpoint import save as save_checkpoint

SCORE, ADAPTED = "score", "adapted"


@dataclass
class Personalizer:
    """A language model on a device, with the words that the device has counted.

    weights: of the parts of a hypothesis. "score" is its total in the first pass, "adapted" the adapted
    model's ln p. The paper: {"acoustic": 1, "lm": 0.5 s, "adapted": 0.5 s} with the first pass's scale s.
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
        """Return the list sorted by the weighted sum, which becomes the score; the sort is stable."""
        if not nbest.hypotheses:
            return nbest
        adapted = AdaptedLm(self.lm, self.marginals)
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
        """Count the words of a list by rank (eq. 3): a list of the first pass, or one that was rescored."""
        cache = self.marginals.client_words.observed(
            nbest, self.background.encode, self.sigma, self.agreement
        )
        self.marginals = replace(self.marginals, client_words=cache)

    def report(self, task: Task | None = None) -> Update:
        """Return what the server may know: q_i and c_i, after the cap. `Unusable` without any words."""
        cache = self.marginals.client_words
        return report_marginal(self.name, cache, self.background.size, task or Task(MARGINAL), self.cap)

    def receive(self, q_bar: Tensor | np.ndarray) -> None:
        """Take the server's q̄ in place of the last one."""
        shared = torch.as_tensor(q_bar).double().numpy()
        if shared.shape != (self.background.size,) or not (shared >= 0).all():
            raise ValueError(
                f"q̄ must hold {self.background.size} probabilities, one for each word of the background; "
                f"got {shared.shape}"
            )
        self.marginals = replace(self.marginals, shared_words=shared)

    def save(self, folder: str | Path) -> None:
        """Write what was learnt, completely or not at all. The model and the background are not written."""
        known = {"ids": self.marginals.client_words.ids, "counts": self.marginals.client_words.counts}
        if self.marginals.shared_words is not None:
            known["everyone"] = self.marginals.shared_words
        tensors = {name: torch.from_numpy(values.copy()) for name, values in known.items()}
        save_checkpoint(Path(folder), tensors, {"words": self.background.digest})

    def load(self, folder: str | Path) -> None:
        """Load what `save` wrote. Refuses counts of another vocabulary."""
        checkpoint: tuple[dict[str, Any], dict[str, Any]] = load_checkpoint(Path(folder), {})
        tensors, notes = checkpoint
        if notes.get("words") != self.background.digest:
            raise ValueError(f"{folder} was saved with another background: its counts are for other words")
        values = {name: tensor.numpy() for name, tensor in tensors.items()}
        cache = Cache(values["ids"], values["counts"])
        self.marginals = replace(self.marginals, client_words=cache, shared_words=values.get("everyone"))
