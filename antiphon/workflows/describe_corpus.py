"""Describe a corpus: speakers, hours of speech, utterances and words of each split."""

from __future__ import annotations

from pathlib import Path

from antiphon.data.corpus import Corpus
from antiphon.data.summary import CorpusSummary, plot_hours, summarise


def describe_corpus(corpus: str | Path, *, plot: str | Path | None = None) -> CorpusSummary:
    """Count the speakers, sessions, utterances, hours and words of each split of a corpus.

    Args:
        corpus: A corpus folder, made by `import_corpus`.
        plot: A file for a plot of the minutes of speech of each client: .png or .svg.

    Example:
        for split in antiphon.describe_corpus("speech").splits:
            print(split.split, split.num_speakers, split.hours)
    """
    summary = summarise(Corpus.open(Path(corpus)))
    if plot is not None:
        plot_hours(summary, plot)
    return summary
