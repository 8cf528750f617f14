"""N-best lists of a finished run's model, for a second pass or for personalisation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from antiphon.decoding.fusion import Fusion
from antiphon.decoding.hypothesis import write_nbest
from antiphon.decoding.recognizer import Recognizer
from antiphon.decoding.rescoring import Lists, tabulate
from antiphon.decoding.search import beam_for, search
from antiphon.models.arpa import load_ngram
from antiphon.recipes.evaluation import open_store
from antiphon.recipes.launch import choose_device


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
    width: int,
    lm: Path | None,
    weight: float,
    word_bonus: float,
    device: str,
    progress: Callable[[int, int], None],
) -> Listing:
    """Searches through a split with the run's model, and writes the lists to `out`."""
    chosen = choose_device(device)
    recognizer = Recognizer.load(run, str(chosen))
    fusion = Fusion(load_ngram(lm), weight, word_bonus) if lm is not None else None
    beam = beam_for(recognizer.model, width, fusion)
    store = open_store(recognizer, run, data)
    indices = store.where(split=split)
    began = time.perf_counter()
    found = list(search(recognizer.model, recognizer.tokens, store, indices, beam, chosen, progress))
    seconds = time.perf_counter() - began
    write_nbest(out, found)
    return Listing(tabulate(found, {}), seconds, float(store.seconds[indices].sum()))
