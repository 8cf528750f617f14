from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import soundfile
from sources import Source, samples, tone

from antiphon.data.corpus import Corpus
from antiphon.data.importing.conversion import ImportOptions, ImportSummary, import_corpus
from antiphon.data.importing.pseudonyms import Pseudonyms

NAMES = ("rosalind", "ursula", "kitchen", "franklin", "leguin")  # speakers, a session, and parts of ids


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Names everywhere that a source can have them: ids, paths, fields, and tags of audio files."""
    source = Source(tmp_path / "source")
    for number, (speaker, surname) in enumerate([("ursula", "leguin"), ("rosalind", "franklin")] * 3):
        fields = {"speaker": speaker, "session": "kitchen", "surname": surname, "text": "some words"}
        source.add(f"{speaker}-{surname}-{number}", **fields)
        path = source.folder / f"{speaker}-{surname}-{number}.flac"
        with soundfile.SoundFile(path, "w", 16000, 1) as file:
            file.artist = f"{speaker} {surname}"
            file.write(tone(pitch=200.0 + number))
    source.add("ursula-leguin-bad", data=b"junk", speaker="ursula")
    source.line('{"id": "franklin-lost", "path": "franklin/lost.flac", "speaker": "rosalind", "text": "x"}')
    return source


def hidden(source: Source, tmp_path: Path, name: str = "corpus", **options: object) -> ImportSummary:
    chosen = ImportOptions(pseudonymise=tmp_path / "names.key", **options)  # type: ignore[arg-type]
    return import_corpus(source.folder, tmp_path / name, chosen)


def pseudonym(key: Path, name: str) -> str:
    """As the documentation describes it."""
    return hmac.new(key.read_bytes(), name.encode(), hashlib.sha256).hexdigest()[:20]


def test_no_file_of_the_corpus_has_a_name(source: Source, tmp_path: Path) -> None:
    summary = hidden(source, tmp_path, speeds=(0.9,))
    assert summary.num_utterances == 12
    assert len(summary.skipped) == 3
    for path in (tmp_path / "corpus").iterdir():
        contents = path.read_bytes().lower()
        assert not [name for name in NAMES if name.encode() in contents], path
    plain = import_corpus(source.folder, tmp_path / "plain")
    assert plain.num_copied == 6
    everything = b"".join(path.read_bytes() for path in (tmp_path / "plain").iterdir()).lower()
    assert [name for name in NAMES if name.encode() in everything] == list(NAMES)


def test_names_are_found_again_with_the_key(source: Source, tmp_path: Path) -> None:
    hidden(source, tmp_path)
    key = tmp_path / "names.key"
    utterances = {one.id: one for one in Corpus.open(tmp_path / "corpus").utterances()}
    first = utterances[pseudonym(key, "ursula-leguin-0")]
    assert first.speaker == pseudonym(key, "ursula")
    assert first.session == pseudonym(key, "kitchen")
    assert first.extra == {}


def test_speech_texts_and_splits_are_those_of_an_import_with_names(source: Source, tmp_path: Path) -> None:
    options = {"split_speakers": (0.5, 0.0, 0.5), "text": ("nfc", "lower_case", "collapse_spaces")}
    summary = hidden(source, tmp_path, **options)
    plain = import_corpus(source.folder, tmp_path / "plain", ImportOptions(**options))  # type: ignore[arg-type]
    corpus, other = Corpus.open(tmp_path / "corpus"), Corpus.open(tmp_path / "plain")
    found = {one.id: one for one in corpus.utterances()}
    for one in other.utterances():
        same = found.pop(pseudonym(tmp_path / "names.key", one.id))
        assert (same.text, same.split, same.seconds) == (one.text, one.split, one.seconds)
        np.testing.assert_array_equal(samples(corpus, same), samples(other, one))
    assert not found
    assert summary.num_texts_changed == plain.num_texts_changed


def test_the_order_of_the_corpus_is_that_of_the_pseudonyms(source: Source, tmp_path: Path) -> None:
    """The order of names would tell who is who."""
    hidden(source, tmp_path)
    keys = [(o.split, o.speaker, o.session, o.id) for o in Corpus.open(tmp_path / "corpus").utterances()]
    assert keys == sorted(keys)


def test_the_key_is_private_made_once_and_decides_the_bytes(source: Source, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        hidden(source, tmp_path)
    finally:
        os.umask(before)
    key = tmp_path / "names.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = key.read_bytes()
    hidden(source, tmp_path, "again")
    assert key.read_bytes() == secret
    for path in (tmp_path / "corpus").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    key.unlink()
    hidden(source, tmp_path, "other")
    assert key.read_bytes() != secret
    assert Corpus.open(tmp_path / "other").fingerprint != Corpus.open(tmp_path / "corpus").fingerprint


def test_a_key_in_the_corpus_or_one_that_others_can_read_is_refused(source: Source, tmp_path: Path) -> None:
    inside = ImportOptions(pseudonymise=tmp_path / "corpus" / "names.key")
    with pytest.raises(ValueError, match=r"names\.key must not be in the corpus"):
        import_corpus(source.folder, tmp_path / "corpus", inside)
    Pseudonyms.open(tmp_path / "names.key")
    (tmp_path / "names.key").chmod(0o644)
    with pytest.raises(ValueError, match=r"names\.key can be read by others: run chmod 600"):
        hidden(source, tmp_path)
    assert not (tmp_path / "corpus").exists()


def test_skipped_utterances_keep_the_kind_of_their_fault(source: Source, tmp_path: Path) -> None:
    summary = hidden(source, tmp_path)
    lines = (tmp_path / "corpus" / "skipped.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["reason"] for line in lines) == sorted(one.kind for one in summary.skipped)
    assert all(json.loads(line)["id"] == json.loads(line)["where"] == "" for line in lines)
