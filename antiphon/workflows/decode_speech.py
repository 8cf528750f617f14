"""Beam search with a finished run's model: N-best lists of a split."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from antiphon.decoding.beams.attention_beam import Penalties
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.nbest import NBest, write_nbest
from antiphon.decoding.rescoring import tabulate
from antiphon.decoding.search import beam_for
from antiphon.decoding.tuning import Ranking
from antiphon.lm.arpa import load_ngram
from antiphon.records.files import check_new_file
from antiphon.workflows.arguments import Notify, Progress, no_messages, no_progress
from antiphon.workflows.rescore_lists import ListScores, describe_weights, oracles, score_choices
from antiphon.workflows.run_decoder import RunDecoder


@dataclass(frozen=True)
class Decoding:
    """N-best lists, their scores, and the weights that were found (empty if none were searched for)."""

    lists: tuple[NBest, ...]
    scores: ListScores
    weights: Mapping[str, float]
    speech_seconds: float
    real_time_factor: float


def nbest(
    run: str | Path,
    out: str | Path,
    *,
    data: str | Path | None = None,
    split: str = "test",
    beam: int = 20,
    lm: str | Path | None = None,
    lm_weight: float = 0.5,
    word_bonus: float = 0.0,
    length_normalisation: float = 0.0,
    token_bonus: float = 0.0,
    coverage: float = 0.0,
    tune: str = "",
    device: str = "auto",
    num_processes: int = 1,
    feature_processes: int = 1,
    progress: Progress = no_progress,
    notify: Notify = no_messages,
) -> Decoding:
    """Decode a split by beam search with a run's model and write the N-best lists.

    Args:
        run: The folder of a finished run, such as out/dga.
        out: The file for the lists: JSON lines, compressed if the name ends in .gz.
        data: A corpus folder; by default the corpus that the run was trained on.
        split: The split of the corpus to decode.
        beam: The number of hypotheses that the search keeps and lists.
        lm: An n-gram model to use in the search: an ARPA file, or a folder.
        lm_weight: The weight of ln p(words) of `lm`.
        word_bonus: A bonus for every word, with `lm`.
        length_normalisation: LAS only: divide ln p(tokens) by ((5 + tokens) / 6) to this power.
        token_bonus: LAS only: a bonus for every token.
        coverage: LAS only: the weight of ln(attention to a frame, at most 1), summed over the frames.
        tune: A split on which the best `lm_weight`, `word_bonus` and `coverage` are found first.
        device: cpu, cuda, cuda:1, or auto (the GPU if there is one).
        num_processes: The number of processes that share the speech.
        feature_processes: The number of processes that compute features.
        progress: A function that is called with (stage, steps done, number of steps).
        notify: A function that is called with a line of text for each trial of the search for weights.

    Example:
        decoding = antiphon.nbest("out/dga", "lists.jsonl", beam=8, lm="books.arpa", tune="heldout")
        print(decoding.scores.choices[0].errors.rate)
    """
    check_new_file(Path(out))
    decoder = RunDecoder.open(run, data, device, feature_processes, partial(progress, "features"))
    fusion = Fusion(load_ngram(lm), lm_weight, word_bonus) if lm is not None else None
    ranking = Ranking(fusion, Penalties(length_normalisation, token_bonus, coverage))
    beam_for(decoder.recognizer.model, beam, ranking.fusion, ranking.penalties)  # refuses before any work
    store = decoder.store
    indices = store.where(split=split)

    def report_trial(tried: Ranking, errors: int) -> None:
        notify(describe_weights(f"{errors:,} errors", tried.weights))

    with decoder.in_processes(num_processes, fusion) as decoders:
        if tune:
            ranking = decoders.tuned(ranking, store.where(split=tune), report=report_trial)
            notify(describe_weights(f"weights, found on {tune}", ranking.weights))
        started = time.perf_counter()
        entries = list(decoders.nbest(indices, beam, ranking, partial(progress, "search")))
        seconds = time.perf_counter() - started
    write_nbest(out, entries)
    lists = tabulate(entries, {})
    scores = score_choices(lists, {"best": lists.first(), **oracles(lists)})
    speech = float(store.seconds[indices].sum())
    return Decoding(tuple(entries), scores, ranking.weights if tune else {}, speech, seconds / speech)
