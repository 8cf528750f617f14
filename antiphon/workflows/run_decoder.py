"""Beam search with a finished run's model: N-best lists, and weights that suit its speech."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from antiphon.data.batches import collate
from antiphon.data.store import FeatureStore
from antiphon.decoding.beams.attention_beam import Penalties
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.likelihoods import likelihoods
from antiphon.decoding.nbest import NBest
from antiphon.decoding.rescoring import tabulate
from antiphon.decoding.search import beam_for, search
from antiphon.decoding.tuning import Ranking, RankingSearch
from antiphon.experiment.preparation import choose_device
from antiphon.lm.ngram import NgramModel
from antiphon.recognizer import Recognizer
from antiphon.workflows.run_corpus import open_store

Progress = Callable[[int, int], None]
PART = 8  # utterances a message: few enough to share evenly


@dataclass(frozen=True)
class Trials:
    """How much is searched for weights: a narrow beam, and part of the speech."""

    width: int = 16
    seconds: float = 600.0


@dataclass(frozen=True)
class RunDecoder:
    """A run's model, and the speech it is to hear; in this process, or in those that are given."""

    recognizer: Recognizer
    store: FeatureStore
    device: torch.device
    processes: Executor | None = None

    @classmethod
    def open(cls, run: Path, data: Path | None, device: str, progress: Progress | None = None) -> RunDecoder:
        """With the corpus of the run, or another; `progress` is of its features, where they are missing."""
        chosen = choose_device(device)
        recognizer = Recognizer.load(run, str(chosen))
        return cls(recognizer, open_store(recognizer, run, data, progress), chosen)

    @contextmanager
    def in_processes(self, num_processes: int, fusion: Fusion | None = None) -> Iterator[RunDecoder]:
        """One that shares its searches among processes of one thread each; the n-grams go to them once."""
        if num_processes == 1:
            yield self
            return
        # Not forked from here: see `data.extraction`.
        context, ngram = get_context("forkserver"), fusion.model if fusion else None
        with ProcessPoolExecutor(num_processes, context, _start_process, (self, ngram)) as executor:
            yield replace(self, processes=executor)

    def nbest(
        self,
        indices: np.ndarray,
        width: int,
        ranking: Ranking = Ranking(),
        progress: Progress = lambda done, total: None,
    ) -> Iterator[NBest]:
        """The N-best list of each of these utterances, from the shortest to the longest."""
        if self.processes is not None:
            return self._nbest_of_parts(self.processes, indices, width, ranking, progress)
        model, tokens = self.recognizer.model, self.recognizer.tokens
        beam = beam_for(model, width, ranking.fusion, ranking.penalties)
        return search(model, tokens, self.store, indices, beam, self.device, progress)

    def _nbest_of_parts(
        self, processes: Executor, indices: np.ndarray, width: int, ranking: Ranking, progress: Progress
    ) -> Iterator[NBest]:
        """The longest, which take longest, are begun first."""
        ordered = indices[np.argsort(self.store.num_frames[indices], kind="stable")]
        parts = np.split(ordered, range(PART, len(ordered), PART))
        weights = (ranking.fusion.weight, ranking.fusion.word_bonus) if ranking.fusion else None
        asked = [
            processes.submit(_search, part, width, ranking.penalties, weights) for part in reversed(parts)
        ]
        done = 0
        for future in reversed(asked):
            yield from (found := future.result())
            done += len(found)
            progress(done, len(ordered))

    def score_lists(
        self, entries: Sequence[NBest], progress: Progress = lambda done, total: None
    ) -> list[float]:
        """ln p(text | speech) of all hypotheses of these lists, which may be another recogniser's."""
        model, tokens, store = self.recognizer.model, self.recognizer.tokens, self.store
        model.eval()
        indices = {store.id(index): index for index in range(len(store))}
        if strange := [entry.id for entry in entries if entry.id not in indices]:
            raise ValueError(f"there is no speech of utterance {strange[0]!r} in the corpus: give --data")
        scores: list[float] = []
        for number, entry in enumerate(entries, 1):
            batch = collate(store, [indices[entry.id]], lambda text: []).to(self.device)
            texts = [tokens.encode(hypothesis.text) for hypothesis in entry.hypotheses]
            scores.extend(likelihoods(model, batch, texts).tolist())
            progress(number, len(entries))
        return scores

    def tuned(
        self,
        ranking: Ranking,
        indices: np.ndarray,
        trials: Trials = Trials(),
        report: Callable[[Ranking, int], None] = lambda tried, errors: None,
    ) -> Ranking:
        """The weights with the fewest errors in some of these utterances; each trial is `told`."""
        every = max(1, round(float(self.store.seconds[indices].sum()) / trials.seconds))

        def count_errors(tried: Ranking) -> int:
            lists = tabulate(self.nbest(indices[::every], trials.width, tried), {})
            errors = lists.count(lists.first()).total
            report(tried, errors)
            return errors

        return RankingSearch().run(self.recognizer.model, ranking, count_errors)


_worker: list[tuple[RunDecoder, NgramModel | None]] = []  # of a process: what `in_processes` sent


def _start_process(decoder: RunDecoder, ngram: NgramModel | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then stops us
    torch.set_num_threads(1)
    _worker[:] = [(decoder, ngram)]


def _search(
    indices: np.ndarray, width: int, penalties: Penalties, weights: tuple[float, float] | None
) -> list[NBest]:
    decoder, ngram = _worker[0]
    fusion = Fusion(ngram, *weights) if ngram is not None and weights else None
    return list(decoder.nbest(indices, width, Ranking(fusion, penalties)))
