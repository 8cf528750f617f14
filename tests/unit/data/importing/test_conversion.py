"""What every import does, whatever the format: shown on manifests, the plainest one."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sources import Source, tone

from antiphon.data.audio import encode_flac
from antiphon.data.corpus import Corpus
from antiphon.data.importing.conversion import ImportOptions, ImportSummary, import_corpus
from antiphon.data.importing.listing import assign_splits

soundfile = pytest.importorskip("soundfile")


def test_a_corpus_holds_what_was_imported(source: Source, run: Callable[..., ImportSummary]) -> None:
    source.add("b", speaker=84, session="84-1", split="test", text="  It's\tHERE ", sex="f", duration=1.0)
    summary = run()
    assert (summary.num_utterances, summary.num_speakers, summary.seconds, summary.skipped) == (2, 2, 2.0, ())
    corpus = Corpus.open(summary.path)
    assert (len(corpus), corpus.seconds, corpus.source) == (2, 2.0, "manifest")
    first, second = corpus.utterances()
    assert (first.id, first.speaker, first.session, first.split) == ("good", "ann", "ann", "pool")
    assert (second.speaker, second.session, second.text, second.extra) == (
        "84",
        "84-1",
        "it's here",
        {"sex": "f"},
    )
    np.testing.assert_allclose(corpus.read_audio(second), tone(), atol=1 / 32768)


def test_good_audio_is_copied_byte_for_byte(source: Source, run: Callable[..., ImportSummary]) -> None:
    summary = run()
    corpus = Corpus.open(summary.path)
    assert corpus.read_bytes(next(corpus.utterances())) == (source.folder / "good.flac").read_bytes()
    assert summary.num_copied == 1


def test_utterances_are_sorted_so_that_clients_are_contiguous(tmp_path: Path) -> None:
    source = Source(tmp_path / "unsorted")
    for name, speaker, split in [
        ("3", "b", "pool"),
        ("2", "a", "test"),
        ("9", "b", "pool"),
        ("1", "a", "pool"),
    ]:
        source.add(name, speaker=speaker, split=split)
    import_corpus(source.folder, tmp_path / "corpus")
    corpus = Corpus.open(tmp_path / "corpus")
    assert [u.id for u in corpus.utterances()] == ["1", "3", "9", "2"]
    offsets = [(u.offset, u.bytes) for u in corpus.utterances()]
    assert all(a + size == b for (a, size), (b, _) in pairwise(offsets))


def test_other_rates_are_resampled_and_several_channels_averaged(
    source: Source, run: Callable[..., ImportSummary]
) -> None:
    soundfile.write(source.folder / "low.wav", tone(rate=8000), 8000)
    soundfile.write(source.folder / "two.wav", np.stack([tone(), np.zeros(16000)], axis=1), 16000)
    source.line('{"id": "low", "path": "low.wav", "speaker": "ann", "text": "low", "duration": 1}')
    source.line('{"id": "two", "path": "two.wav", "speaker": "ann", "text": "two"}')
    summary = run()
    assert (summary.num_resampled, summary.num_mixed, summary.num_copied) == (1, 1, 1)
    corpus = Corpus.open(summary.path)
    _, low, two = corpus.utterances()
    assert low.seconds == 1.0
    np.testing.assert_allclose(corpus.read_audio(low)[500:-500], tone()[500:-500], atol=1e-3)
    np.testing.assert_allclose(corpus.read_audio(two), tone() / 2, atol=1e-4)


def wav(level: float, subtype: str = "FLOAT") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, level * tone(), 16000, format="WAV", subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize(
    ("level", "subtype"), [(1.0, "PCM_24"), (1.0, "FLOAT"), (1.0, "DOUBLE"), (4.0, "FLOAT"), (30.0, "FLOAT")]
)
def test_recordings_of_24_bits_and_of_floats_also_beyond_full_scale_are_taken(
    source: Source, run: Callable[..., ImportSummary], level: float, subtype: str
) -> None:
    """The tone has a height of 0.3: up to 9 times full scale, 19 dB, is taken; the limit is 10."""
    source.add("loud", wav(level, subtype))
    summary = run()
    assert summary.skipped == ()
    corpus = Corpus.open(summary.path)
    loud = next(one for one in corpus.utterances() if one.id == "loud")
    np.testing.assert_allclose(corpus.read_audio(loud), level * tone(), atol=level * 1e-6)


def test_fields_that_are_not_used_may_hold_anything_and_the_corpus_can_be_read(
    source: Source, run: Callable[..., ImportSummary]
) -> None:
    odd: dict[str, Any] = {"score": math.nan, "size": 10**400, "note": "\ud800", "\udc80": 1}
    source.add("odd", take=3, **odd)
    summary = run()
    assert summary.skipped == ()
    found = {one.id: one.extra for one in Corpus.open(summary.path).utterances()}
    assert found["odd"] == {"take": 3}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unreadable": ({"data": b"not audio"}, "unreadable audio"),
    "truncated": ({"data": encode_flac(tone())[:-400]}, "unreadable audio"),
    "no samples": ({"data": b""}, "unreadable audio"),
    "too short": ({"data": encode_flac(tone(0.05))}, "too short: 0.050 s"),
    "too long": ({"data": encode_flac(tone(2.5))}, "too long: 2.50 s"),
    "mismatch": ({"duration": 2.0}, "duration mismatch: the audio lasts 1.00 s, its source says 2.00 s"),
    "1e30": ({"data": wav(1e30)}, "samples out of range: up to 3e+29, full scale is 1 and 10 the limit"),
    "integers as floats": ({"data": wav(32768.0)}, "samples out of range: up to 9.83e+03"),
    "NaN": ({"data": wav(math.nan)}, "unreadable audio: samples that are not numbers"),
    "infinity": ({"data": wav(math.inf)}, "unreadable audio: samples that are not numbers"),
    "huge duration": ({"duration": 10**400}, "bad number: 'duration' is a number of many digits"),
    "infinite duration": ({"duration": math.inf}, "bad number: 'duration' is inf"),
    "bad duration": ({"duration": "long"}, "bad number: 'duration' is 'long'"),
    "empty text": ({"text": " \t "}, "empty text"),
    "no text": ({"text": ...}, "no field 'text': it is missing"),
    "strange characters": ({"text": "zwölf 12 zwölf"}, "characters outside the alphabet: '1' '2' 'ö'"),
    "not UTF-8": ({"text": "\ud800"}, "bad text"),
    "duplicate id": ({"id": "good"}, "duplicate id: already at manifest.jsonl:1"),
    "no speaker": ({"speaker": ...}, "no field 'speaker'"),
    "speaker not text": ({"speaker": ["ann"]}, "no field 'speaker': it is not text"),
    "unprintable speaker": ({"speaker": "a\x1b[2J"}, "bad name: the speaker"),
    "missing file": ({"path": "gone.flac"}, "missing file: gone.flac"),
    "a folder": ({"path": "."}, "missing file: ."),
    "path with NUL": ({"path": "a\0b"}, "bad path"),
}


@pytest.mark.parametrize(("fields", "reason"), BAD.values(), ids=BAD)
def test_a_bad_utterance_is_skipped_with_its_reason(
    source: Source, run: Callable[..., ImportSummary], fields: dict[str, Any], reason: str
) -> None:
    source.add("bad", **fields)
    summary = run(max_seconds=2.0)
    assert summary.num_utterances == 1
    (skipped,) = summary.skipped
    assert skipped.where == "manifest.jsonl:2"
    assert skipped.reason.startswith(reason)
    assert summary.num_skipped_by_kind == {skipped.kind: 1}
    written = json.loads((summary.path / "skipped.jsonl").read_text())
    assert written == {"id": skipped.id, "where": skipped.where, "reason": skipped.reason}


@pytest.mark.parametrize("line", ["{", "[1, 2]", "null", "[" * 100_000, '{"id": "x"'])
def test_a_malformed_line_is_skipped_by_its_number(
    source: Source, run: Callable[..., ImportSummary], line: str
) -> None:
    source.line(line).add("after")
    summary = run()
    assert summary.num_utterances == 2
    assert [(one.where, one.kind) for one in summary.skipped] == [("manifest.jsonl:2", "malformed JSON")]


def test_small_differences_in_duration_are_no_fault(
    source: Source, run: Callable[..., ImportSummary]
) -> None:
    source.add("b", duration=1.45)
    assert run().skipped == ()


def test_without_an_alphabet_every_character_is_taken(
    source: Source, run: Callable[..., ImportSummary]
) -> None:
    source.add("b", text="Zwölf 12")
    summary = run(alphabet=None, lowercase=False)
    assert [u.text for u in Corpus.open(summary.path).utterances()] == ["Zwölf 12", "some words"]
    assert Corpus.open(summary.path).alphabet is None


def test_nothing_left_is_an_error_that_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    source = Source(tmp_path / "source").add("a", text="42").add("b", data=b"junk")
    with pytest.raises(
        ValueError, match=r"(?s)nothing in .*2 utterances skipped.*'2' '4'.*Format not recognised"
    ):
        import_corpus(source.folder, tmp_path / "corpus")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_only_what_is_asked_for_is_imported_and_the_rest_is_no_fault(
    source: Source, run: Callable[..., ImportSummary]
) -> None:
    source.add("b", tar="gone.tar").add("good", kind="again").add("c", kind="again")
    summary = run(where={"kind": "again"})
    assert (summary.num_utterances, summary.num_filtered, summary.skipped) == (2, 2, ())


def test_asking_for_a_field_that_is_not_there_names_those_that_are(run: Callable[..., ImportSummary]) -> None:
    with pytest.raises(ValueError, match=r"do not have colour=red \(fields: session, speaker, split\)"):
        run(where={"colour": "red"})


def test_splits_are_renamed_and_filled_in(source: Source, run: Callable[..., ImportSummary]) -> None:
    source.add("b", split="dev").add("c", split=...)
    corpus = Corpus.open(run(split="extra", splits={"dev": "heldout"}).path)
    assert {u.id: u.split for u in corpus.utterances()} == {"good": "pool", "b": "heldout", "c": "extra"}


def test_speakers_are_divided_by_fractions_the_same_way_every_time(
    source: Source, run: Callable[..., ImportSummary]
) -> None:
    for number in range(9):
        source.add(f"u{number}", speaker=f"s{number}", split="whatever")
    first = run(split_speakers=(0.8, 0.1, 0.1), seed=3)
    splits = {u.speaker: u.split for u in Corpus.open(first.path).utterances()}
    assert sorted(splits.values()) == ["heldout"] + 8 * ["pool"] + ["test"]
    assert assign_splits(splits, (0.8, 0.1, 0.1), seed=3) == splits
    assert assign_splits(splits, (0.8, 0.1, 0.1), seed=4) != splits


def test_too_few_speakers_to_divide_is_an_error(run: Callable[..., ImportSummary]) -> None:
    with pytest.raises(ValueError, match="1 speakers cannot be divided"):
        run(split_speakers=(0.8, 0.1, 0.1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_seconds": 2, "max_seconds": 1}, "below --max-seconds"),
        ({"split_speakers": (0.5, 0.1, 0.1)}, "add up to 1"),
        ({"alphabet": ""}, "alphabet is empty"),
        ({"num_threads": 0}, "at least 1"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImportOptions(**options)


def test_progress_is_told_of_every_utterance(source: Source, tmp_path: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    source.add("b").add("c")
    import_corpus(source.folder, tmp_path / "corpus", progress=lambda *call: calls.append(call[1:]))
    assert calls == [(0, None), (0, 3), (1, 3), (2, 3), (3, 3)]


def test_progress_may_take_two_arguments(source: Source, tmp_path: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    old_style = lambda done, total: calls.append((done, total))  # noqa: E731
    import_corpus(source.folder, tmp_path / "corpus", progress=old_style)
    assert calls == [(0, None), (0, 1), (1, 1)]


def test_an_unknown_format_is_refused_with_the_nearest_name(run: Callable[..., ImportSummary]) -> None:
    with pytest.raises(ValueError, match="did you mean 'kaldi'"):
        run(format="caldi")


def test_a_source_no_importer_knows_lists_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError, match=r"(?s)not known.*manifest.jsonl.*wav.scp.*cuts.*trans.txt.*audio_filepath"
    ):
        import_corpus(tmp_path / "empty", tmp_path / "corpus")
    with pytest.raises(ValueError, match="does not exist"):
        import_corpus(tmp_path / "gone", tmp_path / "corpus")


def test_a_source_in_two_formats_asks_which(source: Source, run: Callable[..., ImportSummary]) -> None:
    (source.folder / "wav.scp").write_text("")
    (source.folder / "text").write_text("")
    with pytest.raises(ValueError, match="could be any of manifest, kaldi"):
        run()
    assert run(format="manifest").num_utterances == 1


def test_many_threads_read_one_corpus(source: Source, run: Callable[..., ImportSummary]) -> None:
    for number in range(20):
        source.add(f"u{number}", data=encode_flac(tone(0.2 + number / 100)))
    corpus = Corpus.open(run().path)
    utterances = list(corpus.utterances()) * 5
    with ThreadPoolExecutor(8) as pool:
        lengths = [len(samples) / 16000 for samples in pool.map(corpus.read_audio, utterances)]
    assert lengths == [utterance.seconds for utterance in utterances]
