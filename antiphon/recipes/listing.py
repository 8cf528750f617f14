"""Beam search with a finished run's model: N-best lists, and weights that suit its speech."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from antiphon.data.store import FeatureStore
from antiphon.decoding.hypothesis import NBest
from antiphon.decoding.recognizer import Recognizer
from antiphon.decoding.rescoring import tabulate
from antiphon.decoding.search import beam_for, search
from antiphon.decoding.tuning import Ranking, RankingSearch
from antiphon.recipes.evaluation import open_store
from antiphon.recipes.preparation import choose_device

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Trials:
    """How much is searched for weights: a narrow beam, and part of the speech."""

    width: int = 16
    seconds: float = 600.0


@dataclass(frozen=True)
class Hearer:
    """A run's model, and the speech it is to hear."""

    recognizer: Recognizer
    store: FeatureStore
    device: torch.device

    @classmethod
    def open(cls, run: Path, data: Path | None, device: str, progress: Progress | None = None) -> Hearer:
        """With the corpus of the run, or another; `progress` is of its features, where they are missing."""
        chosen = choose_device(device)
        recognizer = Recognizer.load(run, str(chosen))
        return cls(recognizer, open_store(recognizer, run, data, progress), chosen)

    def nbest(
        self,
        indices: np.ndarray,
        width: int,
        ranking: Ranking = Ranking(),
        progress: Progress = lambda done, total: None,
    ) -> Iterator[NBest]:
        """The N-best list of each of these utterances."""
        model, tokens = self.recognizer.model, self.recognizer.tokens
        beam = beam_for(model, width, ranking.fusion, ranking.penalties)
        return search(model, tokens, self.store, indices, beam, self.device, progress)

    def tuned(
        self,
        ranking: Ranking,
        indices: np.ndarray,
        trials: Trials = Trials(),
        told: Callable[[Ranking, int], None] = lambda tried, errors: None,
    ) -> Ranking:
        """The weights with the fewest errors in some of these utterances; each trial is `told`."""
        every = max(1, round(float(self.store.seconds[indices].sum()) / trials.seconds))

        def count_errors(tried: Ranking) -> int:
            lists = tabulate(self.nbest(indices[::every], trials.width, tried), {})
            errors = lists.count(lists.first()).total
            told(tried, errors)
            return errors

        return RankingSearch().run(self.recognizer.model, ranking, count_errors)
