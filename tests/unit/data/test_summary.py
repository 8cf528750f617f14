from __future__ import annotations

import io
import json
import warnings
from pathlib import Path

import pytest
from rich.console import Console

from antiphon.data.corpus import FORMAT, Corpus, Utterance
from antiphon.data.importing.candidates import Skipped
from antiphon.data.summary import CorpusSummary, plot_hours, skipped_table, summarise, tables


def corpus(folder: Path, utterances: list[Utterance]) -> Corpus:
    folder.mkdir()
    (folder / "audio.pack").write_bytes(b"")
    (folder / "utterances.jsonl").write_text(
        "".join(u.to_json() + "\n" for u in utterances), encoding="utf-8"
    )
    fields = {"format": FORMAT, "sample_rate": 16000, "alphabet": "ab ", "source": "manifest"}
    totals = {"num_utterances": len(utterances), "seconds": sum(u.seconds for u in utterances)}
    (folder / "corpus.json").write_text(json.dumps({**fields, **totals}))
    return Corpus.open(folder)


@pytest.fixture
def summary(tmp_path: Path) -> CorpusSummary:
    return summarise(
        corpus(
            tmp_path / "corpus",
            [
                Utterance("5", "bob", "bob-1", "test", 6.0, "b", 0, 0),
                Utterance("1", "ann", "ann-1", "pool", 60.0, "a b a", 0, 0),
                Utterance("2", "ann", "ann-2", "pool", 30.0, "ab", 0, 0),
                Utterance("3", "bob", "bob-1", "pool", 120.0, "a", 0, 0),
            ],
        )
    )


def test_splits_come_in_the_order_they_are_used(summary: CorpusSummary) -> None:
    assert [split.split for split in summary.splits] == ["pool", "test"]


def test_a_split_is_counted_by_hand(summary: CorpusSummary) -> None:
    pool = summary.splits[0]
    assert (pool.num_speakers, pool.num_sessions, pool.num_utterances) == (2, 3, 3)
    assert pool.hours == pytest.approx(210 / 3600)
    assert dict(pool.seconds_by_client) == {"bob": 120.0, "ann": 90.0}
    assert list(pool.seconds_by_client) == ["bob", "ann"]
    assert (pool.num_words, pool.vocabulary_size) == (5, 3)
    assert (pool.num_characters, pool.characters) == (8, " ab")
    assert pool.seconds_quantiles == pytest.approx((90, 93, 105, 117, 120))


def test_speakers_in_two_splits_are_noticed(summary: CorpusSummary) -> None:
    assert (summary.num_shared_speakers, summary.vocabulary_size) == (1, 3)


def test_tables_show_the_figures(summary: CorpusSummary) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    for table in tables(summary):
        console.print(table)
    text = console.export_text()
    for figure in (
        "pool",
        "0.06",
        "1.75",
        "1 speakers are in more than one split",
        "3 distinct words in all",
    ):
        assert figure in text


def test_skipped_utterances_are_grouped_by_kind_with_an_example() -> None:
    skipped = [Skipped(f"u{n}[red]", f"m:{n}", "empty text: nothing") for n in range(3)]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(skipped_table([Skipped("x\x1b", "m:9", "too long: 71 s"), *skipped]))
    lines = [line for line in console.export_text().splitlines() if "m:" in line]
    assert [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines] == [
        ["3", "empty text", "u0[red]: nothing", "m:0"],
        ["1", "too long", "x\\x1b: 71 s", "m:9"],
    ]


@pytest.mark.parametrize("num_clients", [1, 10, 10_000])
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_plot_is_saved_for_few_and_for_many_clients(tmp_path: Path, num_clients: int, ending: str) -> None:
    utterances = [
        Utterance(f"{n}", f"${n}_^{{", "x", "pool", 1.0 + n % 97, "a", 0, 0) for n in range(num_clients)
    ]
    path = tmp_path / f"plot.{ending}"
    plot_hours(summarise(corpus(tmp_path / "corpus", utterances)), path)
    assert path.read_bytes().startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    assert path.stat().st_size < 2_000_000


def test_names_that_the_font_does_not_have_are_drawn_without_a_warning(tmp_path: Path) -> None:
    names = ["张伟", "محمد", "שרה"]
    utterances = [Utterance(f"{n}", name, "x", "组", 1.0, "a", 0, 0) for n, name in enumerate(names)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_hours(summarise(corpus(tmp_path / "corpus", utterances)), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").exists()
