from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.data.audio import encode_flac
from antiphon.data.corpus import FORMAT, Corpus, Utterance
from antiphon.records.files import write_sums

pytest.importorskip("soundfile")


def write(folder: Path, **about: Any) -> Path:
    data = encode_flac(np.zeros(1600, np.float32))
    utterance = Utterance("a-1", "a", "a", "pool", 0.1, "ünd", 0, len(data), {"sex": "f"})
    folder.mkdir()
    (folder / "audio.pack").write_bytes(data)
    (folder / "utterances.jsonl").write_text(utterance.to_json() + "\n", encoding="utf-8")
    fields = {"format": FORMAT, "sample_rate": 16000, "alphabet": None, "source": "manifest"}
    totals = {"num_utterances": 1, "seconds": 0.1}
    (folder / "corpus.json").write_text(json.dumps({**fields, **totals, **about}))
    return folder


def test_an_utterance_comes_back_as_it_was_written(tmp_path: Path) -> None:
    corpus = Corpus.open(write(tmp_path / "corpus"))
    (utterance,) = corpus.utterances()
    assert (utterance.text, utterance.extra, utterance.seconds) == ("ünd", {"sex": "f"}, 0.1)
    assert corpus.read_audio(utterance).shape == (1600,)


def test_a_corpus_can_be_sent_to_another_process(tmp_path: Path) -> None:
    corpus = pickle.loads(pickle.dumps(Corpus.open(write(tmp_path / "corpus"))))
    assert corpus.read_audio(next(corpus.utterances())).dtype == np.float32


def test_a_folder_that_is_no_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="antiphon corpus import"):
        Corpus.open(tmp_path)


@pytest.mark.parametrize(
    ("about", "message"),
    [({"format": "antiphon-corpus/9"}, "has format 'antiphon-corpus/9'"), ({"sample_rate": 8000}, "8000 Hz")],
)
def test_another_format_or_rate_is_refused(tmp_path: Path, about: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Corpus.open(write(tmp_path / "corpus", **about))


def test_a_damaged_corpus_says_what_is_damaged(tmp_path: Path) -> None:
    folder = write(tmp_path / "corpus")
    (folder / "utterances.jsonl").write_text("{\n")
    with pytest.raises(ValueError, match=r"utterances.jsonl:1 is not JSON"):
        list(Corpus.open(folder).utterances())
    (folder / "utterances.jsonl").unlink()
    with pytest.raises(ValueError, match=r"lost its utterances.jsonl"):
        Corpus.open(folder)
    (folder / "corpus.json").write_text("{")
    with pytest.raises(ValueError, match=r"corpus.json is not JSON .*\. Restore the corpus"):
        Corpus.open(folder)


@pytest.mark.parametrize("name", ["audio.pack.sums", "utterances.jsonl"])
def test_an_edited_list_of_checksums_is_named_with_the_file(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "corpus", files={name: "0" * 64})
    write_sums(folder / "audio.pack")
    with pytest.raises(ValueError, match=rf"{name} is damaged, or corpus\.json was edited"):
        list(Corpus.open(folder).utterances())


def test_a_pack_that_is_cut_off_names_the_utterance(tmp_path: Path) -> None:
    folder = write(tmp_path / "corpus")
    (folder / "audio.pack").write_bytes(b"")
    corpus = Corpus.open(folder)
    with pytest.raises(ValueError, match="utterance a-1"):
        corpus.read_audio(next(corpus.utterances()))
