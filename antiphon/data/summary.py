"""A summary of a corpus: the figures, tables and plot of `antiphon corpus show`.

A client here is a speaker; `antiphon.data.partition` has other ways to split a corpus into clients.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from antiphon.data.corpus import Corpus, Utterance
from antiphon.data.importing.candidates import Skipped, printable
from antiphon.data.importing.conversion import ImportSummary
from antiphon.records.files import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)
COLOURS = ("#3b6ea8", "#d98032", "#4c9a6a", "#a8577e", "#7d6bb0", "#8c7a5b")
MAX_NAMED_CLIENTS = 60
MAX_NAMED_CHARACTERS = 30


@dataclass(frozen=True)
class SplitSummary:
    """Figures of one split: its clients (name -> seconds of speech, longest first) and its words."""

    split: str
    seconds_by_client: Mapping[str, float]
    num_utterances: int
    num_sessions: int
    num_words: int
    vocabulary_size: int
    num_characters: int
    characters: str  # the distinct ones, sorted

    @property
    def num_speakers(self) -> int:
        return len(self.seconds_by_client)

    @property
    def hours(self) -> float:
        return sum(self.seconds_by_client.values()) / 3600

    @property
    def seconds_quantiles(self) -> tuple[float, ...]:
        """Seconds of speech per client: minimum, 10 %, median, 90 %, maximum."""
        seconds = list(self.seconds_by_client.values())
        return tuple(float(value) for value in np.quantile(seconds, QUANTILES))


@dataclass(frozen=True)
class CorpusSummary:
    """Figures of a corpus by split: pool, heldout, test, then all others."""

    path: Path
    source: str
    alphabet: str | None
    splits: tuple[SplitSummary, ...]
    vocabulary_size: int  # of all splits together
    num_shared_speakers: int  # in more than one split: heldout and test then do not test on new speakers


def describe_corpus(corpus: str | Path, *, plot: str | Path | None = None) -> CorpusSummary:
    """Count the speakers, sessions, utterances, hours and words of each split of a corpus.

    Args:
        corpus: A corpus folder, made by `antiphon corpus import`.
        plot: A file for a plot of the minutes of speech of each client: .png or .svg.

    Example:
        for split in antiphon.describe_corpus("speech").splits:
            print(split.split, split.num_speakers, split.hours)
    """
    summary = summarise(Corpus.open(Path(corpus)))
    if plot is not None:
        plot_hours(summary, plot)
    return summary


def summarise(corpus: Corpus) -> CorpusSummary:
    """Count a corpus in one pass over its index."""
    counts: dict[str, _Counts] = {}
    for utterance in corpus.utterances():
        counts.setdefault(utterance.split, _Counts()).add(utterance)
    usual = {"pool": 0, "heldout": 1, "test": 2}
    order = sorted(counts, key=lambda split: (usual.get(split, 3), split))
    speakers = Counter(speaker for split in counts.values() for speaker in split.seconds)
    return CorpusSummary(
        path=corpus.path,
        source=corpus.source,
        alphabet=corpus.alphabet,
        splits=tuple(counts[split].summary(split) for split in order),
        vocabulary_size=len(set().union(*(split.words for split in counts.values()))),
        num_shared_speakers=sum(count > 1 for count in speakers.values()),
    )


class _Counts:
    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.num_utterances = 0
        self.sessions: set[tuple[str, str]] = set()
        self.words: Counter[str] = Counter()
        self.characters: Counter[str] = Counter()

    def add(self, utterance: Utterance) -> None:
        self.seconds[utterance.speaker] += utterance.seconds  # type: ignore[assignment]
        self.num_utterances += 1
        self.sessions.add((utterance.speaker, utterance.session))
        self.words.update(utterance.text.split())
        self.characters.update(utterance.text)

    def summary(self, split: str) -> SplitSummary:
        return SplitSummary(
            split=split,
            seconds_by_client=dict(sorted(self.seconds.items(), key=lambda item: (-item[1], item[0]))),
            num_utterances=self.num_utterances,
            num_sessions=len(self.sessions),
            num_words=self.words.total(),
            vocabulary_size=len(self.words),
            num_characters=self.characters.total(),
            characters="".join(sorted(self.characters)),
        )


def tables(summary: CorpusSummary) -> list[Table]:
    """Return tables to print: the size of each split, speech per client, and text."""
    from rich.table import Table
    from rich.text import Text

    def table(title: str, caption: str, *columns: str) -> Table:
        made = Table("split", title=title, caption=caption or None)
        for name in columns:
            made.add_column(name, justify="right")
        return made

    num_shared = summary.num_shared_speakers
    shared = f"{num_shared} speakers are in more than one split" if num_shared else ""
    sizes = table("Splits", shared, "speakers", "sessions", "utterances", "hours", "seconds/utterance")
    title = "Minutes of speech per client (speaker)"
    clients = table(title, "", "least", "10 %", "median", "90 %", "most")
    distinct = f"{summary.vocabulary_size:,} distinct words in all"
    words = table("Text", distinct, "words", "distinct words", "characters", "distinct characters")
    for split in summary.splits:
        name, mean = Text(split.split), 3600 * split.hours / split.num_utterances
        numbers = (split.num_speakers, split.num_sessions, split.num_utterances)
        sizes.add_row(name, *(f"{number:,}" for number in numbers), f"{split.hours:.2f}", f"{mean:.1f}")
        clients.add_row(name, *(f"{seconds / 60:.2f}" for seconds in split.seconds_quantiles))
        counts = (split.num_words, split.vocabulary_size, split.num_characters, len(split.characters))
        words.add_row(name, *(f"{count:,}" for count in counts))
    return [sizes, clients, words]


def skipped_table(skipped: Iterable[Skipped]) -> Table:
    """Return a table of the utterances that an import skipped: the number of each kind, with an example."""
    from rich.table import Table
    from rich.text import Text

    kinds: dict[str, list[Skipped]] = {}
    for one in skipped:
        kinds.setdefault(one.kind, []).append(one)
    table = Table(title="Skipped")
    table.add_column("utterances", justify="right")
    for name in ("why", "for example", "at"):
        table.add_column(name, overflow="fold")
    for kind, members in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0])):
        first = members[0]
        details = first.reason.partition(": ")[2]
        example = f"{first.id}: {details}" if first.id else details
        table.add_row(f"{len(members):,}", *(Text(text) for text in (kind, example, first.where)))
    return table


def text_lines(summary: ImportSummary) -> list[str]:
    """Return lines about the texts of an import: what was changed, and characters to look at."""
    lines = []
    if summary.num_texts_changed:
        steps = (f"{step} {count:,}" for step, count in summary.num_texts_changed.items())
        lines.append(f"texts changed: {', '.join(steps)}")
    if summary.rare_characters:
        lines.append(f"rare characters, to check for typos: {_characters(summary.rare_characters)}")
    if summary.strange_characters:
        characters = _characters(summary.strange_characters)
        lines.append(f"texts skipped by character outside the alphabet (--alphabet, --text): {characters}")
    return lines


def _characters(counts: Mapping[str, int]) -> str:
    shown = [
        f"'{printable(name)}': {count:,}" for name, count in islice(counts.items(), MAX_NAMED_CHARACTERS)
    ]
    num_more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {num_more:,} more" if num_more else "")


def plot_hours(summary: CorpusSummary, path: str | Path) -> None:
    """Save bars of minutes per client, longest first, one row per split, as .png or .svg."""
    from matplotlib.figure import Figure

    path = Path(path)
    num_rows = len(summary.splits)
    figure = Figure(figsize=(10, 0.8 + 2.1 * num_rows), layout="constrained")
    rows = figure.subplots(num_rows, 1, squeeze=False)[:, 0]
    for row, (axes, split) in enumerate(zip(rows, summary.splits, strict=True)):
        _plot_split(axes, split, COLOURS[row % len(COLOURS)])
    figure.supylabel("minutes of speech", fontsize=10)
    rows[-1].set_xlabel("clients (speakers), longest first")
    with warnings.catch_warnings():  # matplotlib's font has not the letters of all names
        warnings.filterwarnings("ignore", message="Glyph .* missing|Matplotlib currently does not support")
        replace_file(path, lambda part: figure.savefig(part, dpi=150, format=path.suffix[1:] or "png"))


def _plot_split(axes: Axes, split: SplitSummary, colour: str) -> None:
    minutes = np.array(list(split.seconds_by_client.values())) / 60
    if len(minutes) <= MAX_NAMED_CLIENTS:
        axes.bar(range(len(minutes)), minutes, color=colour, width=0.8)
        axes.set_xlim(-0.6, max(len(minutes), 20) - 0.4)
        short = [name if len(name) <= 12 else name[:11] + "…" for name in split.seconds_by_client]
        labels = [name.replace("$", r"\$") for name in short]  # a dollar sign would start a formula
        axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
    else:
        # One outline instead of thousands of bars: the same picture in a small file.
        axes.stairs(minutes, fill=True, color=colour)
        axes.set_xlim(0, len(minutes))
    median = float(np.median(minutes))
    axes.axhline(median, color="#444444", linewidth=0.8, linestyle="--")
    title = f"{split.split}: {len(minutes):,} clients, {split.hours:.2f} h, median {median:.2f} min"
    axes.set_title(title, loc="left", fontsize=10, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
