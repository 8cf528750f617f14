"""Real corpora, where the folder in ANTIPHON_DATA has them: everything is imported, nothing is changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from command import in_fork

from antiphon.data.corpus import Corpus
from antiphon.data.importing.conversion import ImportOptions, import_corpus
from antiphon.data.importing.selection import Selection

pytest.importorskip("soundfile")

import librispeech_archives  # it reads audio

CORE = Path(__file__).parents[2] / "docs" / "examples" / "librispeech-core.tsv"


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


def test_the_list_of_the_librispeech_tables_is_that_of_the_repacked_corpus(data: Path) -> None:
    manifest = data / "librispeech" / "manifest.jsonl"
    if not manifest.is_file():
        pytest.skip(f"{manifest.name} is not in ANTIPHON_DATA")
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    repacked = {row["id"]: row["split"] for row in rows if row["tar"] == "core.tar"}
    listed = Selection(CORE).entries
    assert {id: split for id, (split, _) in listed.items()} == repacked


@pytest.mark.slow
def test_the_official_archives_give_the_corpus_of_the_librispeech_tables(data: Path, tmp_path: Path) -> None:
    speech = data / "librispeech"
    if not (speech / "manifest.jsonl").is_file():
        pytest.skip("librispeech is not in ANTIPHON_DATA")
    archives = librispeech_archives.write_archives(speech, tmp_path)
    documented = ["corpus", "import", f"{archives}/", str(tmp_path / "corpus"), "--select", str(CORE)]
    assert in_fork(documented, tmp_path / "log").code == 0
    import_corpus(speech, tmp_path / "repacked", ImportOptions(where={"tar": "core.tar"}))
    corpus, repacked = Corpus.open(tmp_path / "corpus"), Corpus.open(tmp_path / "repacked")
    described = [
        [(one.id, one.speaker, one.session, one.split, one.seconds, one.text) for one in side.utterances()]
        for side in (corpus, repacked)
    ]
    assert len(described[0]) == 2703
    assert described[0] == described[1]
    originals = {row["id"] for row in librispeech_archives.rows_of(speech / "manifest_lossless70.jsonl")}
    files = {path.stem: path for path in archives.rglob("*.flac")}
    sessions_heard = set()
    for ours, theirs in zip(corpus.utterances(), repacked.utterances(), strict=True):
        assert corpus.read_bytes(ours) == files[ours.id].read_bytes()
        if ours.id not in originals and ours.session not in sessions_heard:
            sessions_heard.add(ours.session)
            samples = librispeech_archives.as_int16(repacked.read_audio(theirs))
            assert (librispeech_archives.as_int16(corpus.read_audio(ours)) == samples).all()
    assert len(sessions_heard) == len({session for _, _, session, *_ in described[0]})
    shutil.rmtree(tmp_path)  # 800 MB
