"""LibriSpeech trees and Kaldi data directories as people have them, imported and read back."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from sources import imported, ramp, reasons, samples

from antiphon.data.corpus import Corpus
from antiphon.data.importing.conversion import ImportOptions, import_corpus

soundfile = pytest.importorskip("soundfile")


# --- LibriSpeech ----------------------------------------------------------------------------------


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


# --- Other speeds ---------------------------------------------------------------------------------


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


# --- Kaldi ----------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match="--audio-root names one more folder to trust"):
        imported(kaldi)
    assert imported(kaldi, audio_root=tmp_path / "wav")[0].num_utterances == 2
