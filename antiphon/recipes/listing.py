"""N-best lists of a finished run's model, for a second pass or for personalisation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from antiphon.decoding.attention_beam import Penalties
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.hypothesis import write_nbest
from antiphon.decoding.recognizer import Recognizer
from antiphon.decoding.rescoring import Lists, tabulate
from antiphon.decoding.search import Beam, beam_for, search
from antiphon.models.arpa import load_ngram
from antiphon.models.model import Model
from antiphon.recipes.evaluation import open_store
from antiphon.recipes.launch import choose_device


@dataclass(frozen=True)
class Search:
    """How wide to search, with which n-gram model, and by what else hypotheses are ranked."""

    width: int = 20
    lm: Path | None = None
    lm_weight: float = 0.5
    word_bonus: float = 0.0
    penalties: Penalties = Penalties()

    def beam(self, model: Model) -> Beam:
        fusion = None
        if self.lm is not None:
            fusion = Fusion(load_ngram(self.lm), self.lm_weight, self.word_bonus)
        return beam_for(model, self.width, fusion, self.penalties)


@dataclass(frozen=True)
class Listing:
    """Lists as they were written, and how long the search took for how much speech."""

    lists: Lists
    seconds: float
    seconds_of_speech: float


def list_run(
    run: Path,
    out: Path,
    data: Path | None,
    split: str,
    how: Search,
    device: str,
    progress: Callable[[int, int], None],
) -> Listing:
    """Searches through a split with the run's model, and writes the lists to `out`."""
    chosen = choose_device(device)
    recognizer = Recognizer.load(run, str(chosen))
    beam = how.beam(recognizer.model)
    store = open_store(recognizer, run, data)
    indices = store.where(split=split)
    began = time.perf_counter()
    found = list(search(recognizer.model, recognizer.tokens, store, indices, beam, chosen, progress))
    seconds = time.perf_counter() - began
    write_nbest(out, found)
    return Listing(tabulate(found, {}), seconds, float(store.seconds[indices].sum()))
