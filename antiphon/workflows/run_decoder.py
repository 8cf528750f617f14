"""A finished run's model with the features of speech: beam search, tuned weights, scores of texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from antiphon.data.batches import collate
from antiphon.data.corpus import Corpus
from antiphon.data.processes import process_pool
from antiphon.data.store import FeatureStore, compute_features
from antiphon.decoding.beams.attention_beam import Penalties
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.nbest import NBest
from antiphon.decoding.rescoring import tabulate
from antiphon.decoding.search import beam_for, likelihoods, search
from antiphon.decoding.tuning import Ranking, RankingSearch
from antiphon.experiment.folder import corpus_of
from antiphon.experiment.preparation import choose_device
from antiphon.lm.ngram import NgramModel
from antiphon.recognizer import Recognizer

Progress = Callable[[int, int], None]
PART = 8  # utterances of a message to a process: few enough to share evenly


def no_steps(done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Trials:
    """The effort of a search for weights: the width of the beam, and the seconds of speech."""

    width: int = 16
    seconds: float = 600.0


@dataclass(frozen=True)
class RunDecoder:
    """A run's model and the features of a corpus; it works in this process or in `processes`."""

    recognizer: Recognizer
    store: FeatureStore
    device: torch.device
    processes: Executor | None = None

    @classmethod
    def open(
        cls,
        run: str | Path,
        data: str | Path | None,
        device: str,
        num_processes: int | None = None,
        progress: Progress = no_steps,
    ) -> RunDecoder:
        """Open a run with the corpus that it was trained on, or with `data`; compute missing features.

        num_processes: the processes that compute features; by default one for each core.
        """
        chosen, run = choose_device(device), Path(run)
        recognizer = Recognizer.load(run, str(chosen))
        source = data or corpus_of(run)
        if source is None:
            raise ValueError(
                f"{run} does not say which corpus it was trained on: name one with --data (in Python: data=)"
            )
        frontend, num_processes = recognizer.blueprint.frontend, num_processes or os.cpu_count() or 1
        store = compute_features(Corpus.open(Path(source)), frontend, num_processes, progress)
        return cls(recognizer, store, chosen)

    @contextmanager
    def in_processes(self, num_processes: int, fusion: Fusion | None = None) -> Iterator[RunDecoder]:
        """Yield a decoder that shares its searches among processes of one thread each.

        The n-grams are sent to each process once.
        """
        if num_processes < 1:
            raise ValueError(f"there must be at least 1 process, not {num_processes}")
        if num_processes == 1:
            yield self
            return
        ngram = fusion.model if fusion else None
        with process_pool(num_processes, __name__, _start_process, self, ngram) as executor:
            yield replace(self, processes=executor)

    def nbest(
        self, indices: np.ndarray, width: int, ranking: Ranking = Ranking(), progress: Progress = no_steps
    ) -> Iterator[NBest]:
        """Yield the N-best list of each of these utterances, from the shortest to the longest."""
        if self.processes is not None:
            return self._nbest_of_parts(self.processes, indices, width, ranking, progress)
        model, tokens = self.recognizer.model, self.recognizer.tokens
        beam = beam_for(model, width, ranking.fusion, ranking.penalties)
        return search(model, tokens, self.store, indices, beam, self.device, progress)

    def _nbest_of_parts(
        self, processes: Executor, indices: np.ndarray, width: int, ranking: Ranking, progress: Progress
    ) -> Iterator[NBest]:
        """Search in processes. The longest utterances, which take longest, begin first."""
        ordered = indices[np.argsort(self.store.num_frames[indices], kind="stable")]
        parts = np.split(ordered, range(PART, len(ordered), PART))
        weights = (ranking.fusion.weight, ranking.fusion.word_bonus) if ranking.fusion else None
        futures = [
            processes.submit(_search, part, width, ranking.penalties, weights) for part in reversed(parts)
        ]
        done = 0
        for future in reversed(futures):
            yield from (lists := future.result())
            done += len(lists)
            progress(done, len(ordered))

    def score_lists(self, entries: Sequence[NBest], progress: Progress = no_steps) -> list[float]:
        """Return ln p(text | speech) of all hypotheses of these lists, whichever recogniser made them."""
        model, tokens, store = self.recognizer.model, self.recognizer.tokens, self.store
        model.eval()
        indices = {store.id(index): index for index in range(len(store))}
        if missing := [entry.id for entry in entries if entry.id not in indices]:
            raise ValueError(
                f"there is no speech of utterance {missing[0]!r} in the corpus: name another corpus with "
                "--data (in Python: data=)"
            )
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
        """Return the weights with the fewest errors in some of these utterances.

        report: called with the weights and the errors of every trial.
        """
        every = max(1, round(float(self.store.seconds[indices].sum()) / trials.seconds))

        def count_errors(tried: Ranking) -> int:
            lists = tabulate(self.nbest(indices[::every], trials.width, tried), {})
            errors = lists.count(lists.first()).total
            report(tried, errors)
            return errors

        return RankingSearch().run(self.recognizer.model, ranking, count_errors)


_shared: list[tuple[RunDecoder, NgramModel | None]] = []  # what `in_processes` sent to this process


def _start_process(decoder: RunDecoder, ngram: NgramModel | None) -> None:
    torch.set_num_threads(1)
    _shared[:] = [(decoder, ngram)]


def _search(
    indices: np.ndarray, width: int, penalties: Penalties, weights: tuple[float, float] | None
) -> list[NBest]:
    decoder, ngram = _shared[0]
    fusion = Fusion(ngram, *weights) if ngram is not None and weights else None
    return list(decoder.nbest(indices, width, Ranking(fusion, penalties)))
