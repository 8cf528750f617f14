"""Files that list the utterances to import, and the one for the tables of LibriSpeech."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from sources import Source, imported, reasons, tone

from antiphon.data.audio import encode_flac
from antiphon.data.corpus import Corpus
from antiphon.data.importing.conversion import ImportOptions, ImportSummary
from antiphon.data.importing.selection import Selection

ROOT = Path(__file__).parents[4]
CORE = ROOT / "docs" / "examples" / "librispeech-core.tsv"


def listed(folder: Path, text: str) -> Path:
    path = folder / "chosen.tsv"
    path.write_text(text)
    return path


def test_only_listed_utterances_are_imported_with_the_listed_splits(
    source: Source, run: Callable[..., ImportSummary], tmp_path: Path
) -> None:
    source.add("b", split="dev").add("c", split="test").add("d", data=b"junk").add("e", data=b"junk")
    source.line('{"id": "f"}')
    chosen = listed(tmp_path, "id\tsplit\nc\tpool\ngood\theldout\ngone\tpool\nd\ttest\n")
    summary = run(select=str(chosen), splits={"test": "never"}, split="never")
    corpus = Corpus.open(summary.path)
    assert {u.id: u.split for u in corpus.utterances()} == {"good": "heldout", "c": "pool"}
    assert reasons(summary) == {"d": "unreadable audio", "gone": "not in the source"}
    assert [one.where for one in summary.skipped if one.id == "gone"] == ["chosen.tsv:4"]
    assert summary.num_filtered == 3


def test_nothing_selected_is_an_error_that_names_the_file(
    run: Callable[..., ImportSummary], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"(?s)1 are not listed in .*chosen.tsv.*1 x not in the source"):
        run(select=listed(tmp_path, "zed\tpool\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lists no utterances"),
        ("id\tsplit\n", "lists no utterances"),
        ("a pool\n", "chosen.tsv:1 is not an id, a tab and a split"),
        ("a\tpool\nb\t\n", "chosen.tsv:2 is not"),
        ("a\tpool\nb\tpool\na\ttest\n", "chosen.tsv:3 lists a again: it is already at chosen.tsv:1"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused(
    run: Callable[..., ImportSummary], tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(select=listed(tmp_path, text))
    with pytest.raises(ValueError, match="there is no file"):
        run(select=tmp_path / "gone.tsv")


def test_a_selection_names_the_splits_itself() -> None:
    with pytest.raises(ValueError, match="split-speakers cannot be used"):
        ImportOptions(select=CORE, split_speakers=(0.8, 0.1, 0.1))


def test_the_list_of_the_librispeech_tables_has_official_ids() -> None:
    entries = Selection(CORE).entries
    assert Counter(split for split, _ in entries.values()) == {"pool": 1825, "heldout": 316, "test": 562}
    assert all(re.fullmatch(r"\d{2,4}-\d{3,6}-\d{4}", id) for id in entries)
    split_by_speaker = {(id.split("-")[0], split) for id, (split, _) in entries.items()}
    assert Counter(split for _, split in split_by_speaker) == {"pool": 50, "heldout": 8, "test": 12}
    assert len({speaker for speaker, _ in split_by_speaker}) == 70  # nobody is in two splits


def test_official_librispeech_folders_are_imported_by_the_list(tmp_path: Path) -> None:
    """Two chapters of the list, and one that it does not have, as the official archives store them."""
    root = tmp_path / "LibriSpeech"
    chapters = [("test-clean", "61-70968"), ("dev-clean", "1993-147149"), ("dev-clean", "84-999999")]
    for part, chapter in chapters:
        folder = root / part / chapter.replace("-", "/")
        folder.mkdir(parents=True)
        names = [f"{chapter}-{number:04}" for number in range(3)]
        for name in names:
            (folder / f"{name}.flac").write_bytes(encode_flac(tone(0.2)))
        (folder / f"{chapter}.trans.txt").write_text("".join(f"{name} THE BOYS' ROOM\n" for name in names))
    summary, _, utterances = imported(root, select=CORE)
    wanted = {id: split for id, (split, _) in Selection(CORE).entries.items()}
    made = {id: one.split for id, one in utterances.items()}
    numbered = {f"{chapter}-000{number}" for _, chapter in chapters for number in range(3)}
    assert made == {id: split for id, split in wanted.items() if id in numbered}
    assert len(made) == 6
    assert {one.text for one in utterances.values()} == {"the boys' room"}
    assert utterances["1993-147149-0000"].session == "1993-147149"
    assert summary.num_filtered == 9 - len(made)
    assert summary.num_skipped_by_kind == {"not in the source": 2703 - len(made)}
