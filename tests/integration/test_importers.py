"""Each format as people have it, written by hand or by Lhotse itself, imported and read back."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.data.corpus import Corpus
from antiphon.data.importing import ImportOptions, ImportSummary, import_corpus

soundfile = pytest.importorskip("soundfile")


def ramp(seconds: float, first: int = 0) -> np.ndarray:
    """Samples that say where they are from: sample n is n (plus the first), as 16-bit integers."""
    return ((np.arange(round(seconds * 16000)) + first) % 32768).astype(np.int16)


def imported(source: Path, **options: Any) -> tuple[ImportSummary, Corpus, dict[str, Any]]:
    summary = import_corpus(source, source.parent / "corpus", ImportOptions(**options, overwrite=True))
    corpus = Corpus.open(summary.path)
    return summary, corpus, {utterance.id: utterance for utterance in corpus.utterances()}


def samples(corpus: Corpus, utterance: Any) -> np.ndarray:
    return np.rint(corpus.read_audio(utterance) * 32768).astype(np.int16)


def reasons(summary: ImportSummary) -> dict[str, str]:
    return {skipped.id: skipped.kind for skipped in summary.skipped}


@pytest.fixture
def librispeech(tmp_path: Path) -> Path:
    root = tmp_path / "LibriSpeech"
    for part, speaker, chapter in [("dev-clean", "84", "121123"), ("test-clean", "61", "70968")]:
        folder = root / part / speaker / chapter
        folder.mkdir(parents=True)
        name = f"{speaker}-{chapter}"
        for number in range(2):
            soundfile.write(folder / f"{name}-000{number}.flac", ramp(0.5), 16000)
        lines = [f"{name}-0000 GO ON", f"{name}-0001 DON'T STOP"]
        (folder / f"{name}.trans.txt").write_text("\n".join(lines) + "\n")
    (root / "SPEAKERS.TXT").write_text("; a comment\n")
    return root


def test_the_pool_is_also_taken_at_other_speeds(librispeech: Path) -> None:
    tone = np.sin(2 * np.pi * 400 * np.arange(16000) / 16000) / 2
    for path in sorted(librispeech.rglob("*.flac")):
        soundfile.write(path, tone, 16000)
    summary, corpus, utterances = imported(librispeech, splits={"dev-clean": "pool"}, speeds=(0.8, 1.25))
    assert list(utterances) == [
        *("84-121123-0000", "84-121123-0000-speed0.8", "84-121123-0000-speed1.25"),
        *("84-121123-0001", "84-121123-0001-speed0.8", "84-121123-0001-speed1.25"),
        *("61-70968-0000", "61-70968-0001"),  # test speakers are left as they are
    ]
    assert (summary.num_copied, summary.num_resampled) == (4, 0)
    for speed, seconds in ((0.8, 1.25), (1.25, 0.8)):
        copy = utterances[f"84-121123-0001-speed{speed}"]
        assert (copy.text, copy.speaker, copy.split, copy.extra["speed"]) == (
            "don't stop",
            "84",
            "pool",
            speed,
        )
        assert copy.seconds == pytest.approx(seconds, abs=1e-3)
        spectrum = np.abs(np.fft.rfft(corpus.read_audio(copy)))
        assert spectrum.argmax() / copy.seconds == pytest.approx(400 * speed, abs=1.0)


@pytest.mark.parametrize("speeds", [(1.0,), (0.0,), (0.9, 0.9), (float("nan"),)])
def test_speeds_that_make_no_sense_are_refused(speeds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="speed"):
        ImportOptions(speeds=speeds)


def test_librispeech_folders(librispeech: Path) -> None:
    summary, corpus, utterances = imported(librispeech, splits={"dev-clean": "heldout"})
    assert (summary.format, summary.num_utterances, summary.num_copied) == ("librispeech", 4, 4)
    one = utterances["84-121123-0001"]
    assert (one.speaker, one.session, one.split, one.text) == ("84", "84-121123", "heldout", "don't stop")
    assert utterances["61-70968-0000"].split == "test-clean"
    np.testing.assert_array_equal(samples(corpus, one), ramp(0.5))


def test_librispeech_parts_speakers_and_parents_are_recognised(librispeech: Path, tmp_path: Path) -> None:
    for source in (librispeech / "dev-clean", librispeech / "dev-clean" / "84"):
        corpus = Corpus.open(import_corpus(source, tmp_path / source.name).path)
        assert [(u.speaker, u.split) for u in corpus.utterances()] == 2 * [("84", "dev-clean")]
    (tmp_path / "above").mkdir()
    librispeech.rename(tmp_path / "above" / "LibriSpeech")
    assert import_corpus(tmp_path / "above", tmp_path / "all").num_utterances == 4


def test_librispeech_faults_are_skipped(librispeech: Path) -> None:
    chapter = librispeech / "dev-clean" / "84" / "121123"
    (chapter / "84-121123.trans.txt").write_text(
        "84-121123-0000 GO ON\n84-121123-0007 GONE\n/etc/passwd OUT\n"
    )
    summary, _, utterances = imported(librispeech)
    assert "84-121123-0000" in utterances
    assert reasons(summary) == {
        "84-121123-0007": "missing file",
        "/etc/passwd": "path outside the source folder",
        "84-121123-0001": "no text",
    }


@pytest.fixture
def kaldi(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "wav").mkdir(parents=True)
    soundfile.write(folder / "wav" / "a.wav", ramp(1.0), 16000)
    soundfile.write(folder / "wav" / "b.wav", ramp(2.0), 16000)
    (folder / "wav.scp").write_text("ann-1 wav/a.wav\nbob-1 wav/b.wav\n")
    (folder / "text").write_text("ann-1 Hello there\nbob-1 well\n")
    (folder / "utt2spk").write_text("ann-1 ann\nbob-1 bob\n")
    return folder


def test_kaldi_data_directory_of_whole_files(kaldi: Path) -> None:
    summary, corpus, utterances = imported(kaldi)
    assert (summary.format, summary.num_copied, summary.skipped) == ("kaldi", 2, ())
    one = utterances["ann-1"]
    assert (one.speaker, one.session, one.split, one.text) == ("ann", "ann", "pool", "hello there")
    assert corpus.read_bytes(one) == (kaldi / "wav" / "a.wav").read_bytes()


def test_kaldi_segments_are_cut_to_the_sample(kaldi: Path) -> None:
    (kaldi / "segments").write_text("u1 bob-1 0.25 0.75\nu2 bob-1 1.5 -1\nu3 ann-1 0 1.02\n")
    (kaldi / "text").write_text("u1 one\nu2 two\nu3 three\n")
    (kaldi / "utt2spk").write_text("u1 bob\nu2 bob\nu3 ann\n")
    summary, corpus, utterances = imported(kaldi)
    assert summary.skipped == ()
    assert utterances["u1"].session == "bob-bob-1"
    np.testing.assert_array_equal(samples(corpus, utterances["u1"]), ramp(0.5, 4000))
    np.testing.assert_array_equal(samples(corpus, utterances["u2"]), ramp(0.5, 24000))
    np.testing.assert_array_equal(samples(corpus, utterances["u3"]), ramp(1.0))


def test_kaldi_faults_are_skipped_and_commands_never_run(kaldi: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    audio = [
        f"pipe touch {ran} && cat wav/b.wav |",
        f"out {tmp_path}/x.wav",
        "mute wav/b.wav",
        "nobody wav/b.wav",
    ]
    (kaldi / "wav.scp").write_text("\n".join(["ann-1 wav/a.wav", *audio, "ann-1 again"]) + "\n")
    (kaldi / "text").write_text("ann-1 hello\npipe a\nout b\nnowhere c\nnobody d\n")
    (kaldi / "utt2spk").write_text("ann-1 ann\npipe bob\nout bob\nnowhere bob\n")
    (kaldi / "utt2dur").write_text("ann-1 1.1\n")
    summary, _, utterances = imported(kaldi)
    assert list(utterances) == ["ann-1"]
    assert not ran.exists()
    assert reasons(summary) == {
        "pipe": "command in wav.scp",
        "out": "path outside the source folder",
        "nowhere": "missing file",
        "nobody": "no speaker",
        "mute": "no text",
        "ann-1": "duplicate id",
    }


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("u1 bob-1 1.0 5.0", "segment out of range"),
        ("u1 bob-1 1.0 0.5", "segment out of range"),
        ("u1 bob-1 one two", "malformed segment"),
        ("u1 bob-1", "malformed segment"),
        ("u1 zed 0 1", "missing file"),
        ("u9 bob-1 0 1", "missing segment"),
    ],
)
def test_kaldi_segments_that_cannot_be(kaldi: Path, line: str, kind: str) -> None:
    (kaldi / "segments").write_text(f"good bob-1 0 1\n{line}\n")
    (kaldi / "text").write_text("good fine\nu1 bad\n")
    (kaldi / "utt2spk").write_text("good bob\nu1 bob\n")
    summary, _, utterances = imported(kaldi)
    assert list(utterances) == ["good"]
    assert reasons(summary)["u1"] == kind


def test_kaldi_text_that_is_not_utf8_is_skipped(kaldi: Path) -> None:
    (kaldi / "text").write_bytes(b"ann-1 hello\nbob-1 caf\xe9\n")
    assert reasons(imported(kaldi)[0]) == {"bob-1": "bad text"}


def test_kaldi_audio_elsewhere_needs_audio_root(kaldi: Path, tmp_path: Path) -> None:
    os.rename(kaldi / "wav", tmp_path / "wav")
    (kaldi / "wav.scp").write_text(f"ann-1 {tmp_path}/wav/a.wav\nbob-1 {tmp_path}/wav/b.wav\n")
    with pytest.raises(ValueError, match="audio_root"):
        imported(kaldi)
    assert imported(kaldi, audio_root=tmp_path / "wav")[0].num_utterances == 2


@pytest.fixture
def nemo(tmp_path: Path) -> Path:
    folder = tmp_path / "nemo"
    folder.mkdir()
    soundfile.write(folder / "a.wav", ramp(2.0), 16000)
    rows: list[dict[str, Any]] = [
        {"audio_filepath": "a.wav", "duration": 2.0, "text": "all", "caller": 7, "lang": "en"},
        {
            "audio_filepath": str(folder / "a.wav"),
            "offset": 0.5,
            "duration": 0.25,
            "text": "part",
            "caller": "x",
        },
    ]
    (folder / "train.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_nemo_manifest_with_parts_and_its_own_name_for_the_client(nemo: Path) -> None:
    summary, corpus, utterances = imported(nemo / "train.json", client_key="caller", split="test")
    assert (summary.format, summary.num_copied) == ("nemo", 1)
    whole = utterances["a"]
    assert (whole.speaker, whole.split, whole.text, whole.extra) == ("7", "test", "all", {"lang": "en"})
    (part,) = (u for name, u in utterances.items() if name.endswith("nemo-a-500"))
    assert part.speaker == "x"
    np.testing.assert_array_equal(samples(corpus, part), ramp(0.25, 8000))


def test_nemo_without_the_client_key_lists_the_keys_there_are(nemo: Path) -> None:
    keys = "audio_filepath, caller, duration, lang, text"
    message = rf"train.json:1 has no field 'speaker'.*client_key \(--client-key\) to one of {keys}"
    with pytest.raises(ValueError, match=message):
        imported(nemo)


def test_nemo_folder_with_several_manifests_asks_for_one(nemo: Path) -> None:
    (nemo / "dev.json").write_text((nemo / "train.json").read_text())
    with pytest.raises(ValueError, match=r"import one of dev.json, train.json"):
        imported(nemo, client_key="caller")


def test_nemo_faults_are_skipped(nemo: Path) -> None:
    with open(nemo / "train.json", "a") as file:
        for row in (
            {"audio_filepath": "a.wav", "offset": 1.5, "duration": 9, "text": "x", "caller": "x"},
            {"id": "far", "audio_filepath": "/etc/passwd", "duration": 1, "text": "x", "caller": "x"},
            {"id": "short", "audio_filepath": "a.wav", "duration": 4, "text": "x", "caller": "x"},
            {"id": "odd", "audio_filepath": "a.wav", "duration": "4", "text": "x", "caller": "x"},
            {"text": "x", "caller": "x"},
        ):
            file.write(json.dumps(row) + "\n")
    assert reasons(imported(nemo, client_key="caller")[0]) == {
        "a-1500": "segment out of range",
        "far": "path outside the source folder",
        "short": "duration mismatch",
        "odd": "bad number",
        "": "no field 'audio_filepath'",
    }


@pytest.fixture
def lhotse_set(tmp_path: Path) -> tuple[Path, Any, Any]:
    lhotse = pytest.importorskip("lhotse", reason="Lhotse is not installed")
    folder = tmp_path / "lhotse"
    folder.mkdir()
    soundfile.write(folder / "mono.wav", ramp(2.0), 16000)
    soundfile.write(folder / "two.flac", np.stack([ramp(2.0), ramp(2.0, 99)], axis=1), 16000)
    recordings = lhotse.RecordingSet.from_recordings(
        lhotse.Recording.from_file(folder / name) for name in ("mono.wav", "two.flac")
    )
    segment = lhotse.SupervisionSegment
    supervisions = lhotse.SupervisionSet.from_segments(
        [
            segment("m", "mono", 0, 2.0, text="Whole", speaker="ann", gender="f", custom={"room": "r1"}),
            segment("t", "two", 0.5, 1.0, channel=1, text="second", speaker="bob", custom={"room": "r2"}),
        ]
    )
    return folder, recordings, supervisions


def check_lhotse(source: Path, split: str) -> None:
    summary, corpus, utterances = imported(source, session_key="room")
    assert (summary.format, summary.skipped, summary.num_copied) == ("lhotse", (), 1)
    one, two = utterances["m"], utterances["t"]
    assert (one.speaker, one.session, one.split, one.text) == ("ann", "r1", split, "whole")
    assert one.extra["gender"] == "f"
    assert corpus.read_bytes(one) == (source / "mono.wav").read_bytes()
    np.testing.assert_array_equal(samples(corpus, two), ramp(1.0, 8099))


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_lhotse_recordings_and_supervisions(lhotse_set: tuple[Path, Any, Any], ending: str) -> None:
    folder, recordings, supervisions = lhotse_set
    recordings.to_file(folder / f"x_recordings_dev.{ending}")
    supervisions.to_file(folder / f"x_supervisions_dev.{ending}")
    check_lhotse(folder, "dev")


def test_lhotse_cuts_whole_and_trimmed(lhotse_set: tuple[Path, Any, Any]) -> None:
    lhotse = pytest.importorskip("lhotse")
    folder, recordings, supervisions = lhotse_set
    cuts = lhotse.CutSet.from_manifests(recordings=recordings, supervisions=supervisions)
    for each in (cuts, cuts.trim_to_supervisions(), cuts.resample(8000)):
        each.to_file(folder / "cuts.jsonl.gz")
        check_lhotse(folder, "pool")


def test_lhotse_faults_are_skipped_and_nothing_is_run(lhotse_set: tuple[Path, Any, Any]) -> None:
    lhotse = pytest.importorskip("lhotse")
    folder, recordings, supervisions = lhotse_set
    cuts = lhotse.CutSet.from_manifests(recordings=recordings, supervisions=supervisions)
    cuts.to_file(folder / "cuts.jsonl")
    good, other = (folder / "cuts.jsonl").read_text().splitlines()
    padded, faster = cuts.subset(first=1).pad(9), cuts.subset(first=1).perturb_speed(1.1)
    padded.to_file(folder / "padded.jsonl")
    faster.to_file(folder / "faster.jsonl")
    command = json.loads(other)
    command["recording"]["sources"][0].update(type="command", source=f"touch {folder}/ran")
    silent = json.loads(other)
    silent["supervisions"][0].update(id="silent", speaker=None)
    odd = json.loads(other) | {"id": "odd", "channel": 5, "unknown_field": 1, "type": "NewCut"}
    lines = [good, *map(json.dumps, (command, silent, odd)), "{", "{}"]
    lines += [(folder / name).read_text().strip() for name in ("padded.jsonl", "faster.jsonl")]
    (folder / "cuts.jsonl").write_text("\n".join(lines))
    summary, _, utterances = imported(folder / "cuts.jsonl")
    assert list(utterances) == ["m"]
    assert not (folder / "ran").exists()
    assert sorted(one.kind for one in summary.skipped) == [
        "malformed JSON",
        "malformed manifest",
        "malformed manifest",
        "no field 'speaker'",
        "not a file",
        "transformed recording",
        "unusable cut",
    ]


def test_lhotse_archive_that_is_cut_off_gives_what_can_be_read(lhotse_set: tuple[Path, Any, Any]) -> None:
    folder, recordings, supervisions = lhotse_set
    recordings.to_file(folder / "recordings.jsonl")
    supervisions.to_file(folder / "supervisions.jsonl")
    lines = (folder / "supervisions.jsonl").read_bytes() * 3000
    os.remove(folder / "supervisions.jsonl")
    os.rename(folder / "recordings.jsonl", folder / "recordings.jsonl.tmp")
    (folder / "recordings.jsonl.gz").write_bytes(
        gzip.compress((folder / "recordings.jsonl.tmp").read_bytes())
    )
    (folder / "supervisions.jsonl.gz").write_bytes(gzip.compress(lines)[:-100])
    summary, _, utterances = imported(folder)
    assert sorted(utterances) == ["m", "t"]
    assert summary.num_skipped_by_kind.keys() == {"duplicate id", "damaged file"}


@pytest.fixture
def data() -> Path:
    folder = os.environ.get("ANTIPHON_DATA")
    if not folder:
        pytest.skip("set ANTIPHON_DATA to a folder with librispeech/, iban/ and audiomnist/")
    return Path(folder)


def test_real_lossless_librispeech_is_copied_exactly(data: Path, tmp_path: Path) -> None:
    source = data / "librispeech" / "manifest_lossless70.jsonl"
    if not source.is_file():
        pytest.skip(f"{source.name} is not in ANTIPHON_DATA")
    summary = import_corpus(source, tmp_path / "corpus")
    assert (summary.num_utterances, summary.num_speakers, summary.num_copied) == (70, 70, 70)
    corpus = Corpus.open(summary.path)
    whole_tar = (data / "librispeech" / "lossless70.tar").read_bytes()
    for utterance in corpus.utterances():
        assert corpus.read_bytes(utterance) in whole_tar
        assert utterance.session.startswith(f"{utterance.speaker}-")


@pytest.mark.parametrize(
    ("name", "where", "num_utterances"),
    [
        ("audiomnist", {"speaker": "15"}, 30),
        ("iban", {"split": "test"}, 142),
        ("librispeech", {"speaker": "84"}, 65),
    ],
)
def test_real_corpora_are_imported(
    data: Path, tmp_path: Path, name: str, where: dict[str, str], num_utterances: int
) -> None:
    if not (data / name).is_dir():
        pytest.skip(f"{name} is not in ANTIPHON_DATA")
    options = ImportOptions(where=where, alphabet="abcdefghijklmnopqrstuvwxyz'- ")
    summary = import_corpus(data / name, tmp_path / "corpus", options)
    assert (summary.num_utterances, summary.skipped) == (num_utterances, ())
    assert summary.num_copied == num_utterances
