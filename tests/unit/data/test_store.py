from __future__ import annotations

import io
import json
import mmap
import pickle
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from antiphon.data.corpus import Corpus
from antiphon.data.extraction import CHUNK, as_float16
from antiphon.data.frontends import Filterbank
from antiphon.data.store import FeatureStore, compute_features

FILES = ("frames.f16", "ids.txt", "index.npz", "store.json", "texts.txt")
SUMS = ("frames.f16.sums", "ids.txt.sums", "texts.txt.sums")


def wav(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes((samples * 32767).astype("<i2").tobytes())
    return file.getvalue()


def write_corpus(folder: Path, num_utterances: int = 6, short: int | None = None) -> Corpus:
    """Noise of growing length by speakers a (pool), b (pool), c (test); `short` has 10 ms only."""
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    lines, pack = [], b""
    for number in range(num_utterances):
        speaker = "abc"[3 * number // num_utterances]
        num_samples = 160 if number == short else 3200 + 160 * number
        audio = wav(generator.uniform(-0.5, 0.5, num_samples))
        line = {"id": f"{speaker}-{number}é", "speaker": speaker, "session": f"{speaker}{number % 2}"}
        line |= {"split": "test" if speaker == "c" else "pool", "text": f"ünï {'x' * number}"}
        lines.append(line | {"seconds": num_samples / 16000, "offset": len(pack), "bytes": len(audio)})
        pack += audio
    (folder / "audio.pack").write_bytes(pack)
    (folder / "utterances.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    about = {"format": "antiphon-corpus/1", "sample_rate": 16000, "alphabet": None, "source": "test"}
    about |= {"num_utterances": num_utterances, "seconds": 1.0}
    (folder / "corpus.json").write_text(json.dumps(about))
    return Corpus.open(folder)


@dataclass(frozen=True)
class Means:
    """A front end that can be checked by hand: the mean of every 160 samples, scaled."""

    scale: float = 1.0
    dim: int = 1
    frames_per_second: float = 100.0

    def key(self) -> str:
        return f"means-{self.scale:g}"

    def load(self) -> Callable[[np.ndarray], np.ndarray]:
        def extract(samples: np.ndarray) -> np.ndarray:
            return self.scale * samples.reshape(-1, 160).mean(axis=1, keepdims=True)

        return extract


def test_a_store_gives_back_what_the_corpus_and_the_front_end_say(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    store = compute_features(corpus, Filterbank())
    extract = Filterbank().load()
    assert (len(store), store.dim, store.frames_per_second) == (6, 80, 100.0)
    for index, utterance in enumerate(corpus.utterances()):
        expected = extract(corpus.read_audio(utterance)).astype(np.float16)
        np.testing.assert_array_equal(store.features(index), expected)
        assert store.num_frames[index] == len(expected)
        assert store.seconds[index] == np.float32(utterance.seconds)
        assert (store.id(index), store.text(index)) == (utterance.id, utterance.text)
        assert store.speaker(index) == utterance.speaker
        assert store.session(index) == utterance.session
        assert store.split(index) == utterance.split


def test_features_are_read_only_views_of_the_file(tmp_path: Path) -> None:
    features = compute_features(write_corpus(tmp_path / "corpus"), Means()).features(2)
    assert features.dtype == np.float16
    assert not features.flags.owndata
    assert not features.flags.writeable


def test_expected_utterances_are_asked_of_the_system_in_whole_pages_and_few_stretches(tmp_path: Path) -> None:
    class Mapping(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            super().madvise(option, start, length)
            asked.append((option, start, start + length))

    asked: list[tuple[int, int, int]] = []
    store = compute_features(write_corpus(tmp_path, num_utterances=60), Filterbank())
    with (store.folder / "frames.f16").open("rb") as file:
        store._frames.map = Mapping(file.fileno(), 0, access=mmap.ACCESS_READ)
    store.expect(np.array([40, 3, 4, 5, 41]))
    assert [option for option, _, _ in asked] == [mmap.MADV_WILLNEED] * 2
    for (_, start, stop), (first, last) in zip(asked, [(3, 5), (40, 41)], strict=True):
        begin, end = 160 * int(store.first_frame[first]), 160 * int(store.first_frame[last + 1])
        assert start % mmap.PAGESIZE == 0
        assert start <= begin < start + mmap.PAGESIZE
        assert stop == end
    store.expect(np.array([], dtype=np.int64))
    assert len(asked) == 2


def test_utterances_are_found_by_split_and_speaker(tmp_path: Path) -> None:
    store = compute_features(write_corpus(tmp_path / "corpus"), Means())
    assert store.where().tolist() == [0, 1, 2, 3, 4, 5]
    assert store.where(split="pool").tolist() == [0, 1, 2, 3]
    assert store.where(speakers=["c", "a"]).tolist() == [0, 1, 4, 5]
    assert store.where(split="test", speakers=["a"]).tolist() == []
    assert store.where(speakers=[]).tolist() == []
    assert store.speakers("pool") == ["a", "b"]
    assert store.speakers() == ["a", "b", "c"]


def test_unknown_splits_and_speakers_are_refused_by_name(tmp_path: Path) -> None:
    store = compute_features(write_corpus(tmp_path / "corpus"), Means())
    with pytest.raises(ValueError, match=r"no split 'dev' in .*there are pool, test"):
        store.where(split="dev")
    with pytest.raises(ValueError, match=r"no such speakers in .*: zoe"):
        store.where(speakers=["a", "zoe"])


def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    corpora = [write_corpus(tmp_path / name, num_utterances=2 * CHUNK + 5) for name in ("one", "two")]
    stores = [compute_features(corpus, Filterbank(), num) for num, corpus in enumerate(corpora, 1)]
    assert sorted(path.name for path in stores[0].folder.iterdir()) == sorted([*FILES, *SUMS])
    for name in FILES:
        assert (stores[0].folder / name).read_bytes() == (stores[1].folder / name).read_bytes()


def test_progress_is_told_for_every_utterance(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    compute_features(write_corpus(tmp_path / "corpus"), Means(), 1, lambda *call: calls.append(call))
    assert calls == [(done, 6) for done in range(1, 7)]


def test_a_store_that_is_there_is_opened_not_computed(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    folder = compute_features(corpus, Means()).folder
    before = (folder / "frames.f16").stat().st_mtime_ns
    (corpus.path / "audio.pack").write_bytes(b"")
    assert len(compute_features(corpus, Means())) == 6
    assert (folder / "frames.f16").stat().st_mtime_ns == before


def test_a_changed_corpus_is_computed_again(tmp_path: Path) -> None:
    compute_features(write_corpus(tmp_path / "corpus", num_utterances=6), Means())
    store = compute_features(write_corpus(tmp_path / "corpus", num_utterances=9), Means())
    assert len(store) == 9
    assert [path.name for path in store.folder.parent.iterdir()] == ["means-1"]


def test_a_failing_utterance_is_named_with_its_speaker_and_nothing_is_left(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", short=3)
    with pytest.raises(ValueError, match=r"utterance b-3é \(speaker b\).*too short: 160 samples"):
        compute_features(corpus, Filterbank())
    assert list((corpus.path / "features").iterdir()) == []


def test_a_failing_utterance_in_another_process_is_named_too(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", short=3)
    with pytest.raises(ValueError, match=r"utterance b-3é \(speaker b\).*too short: 160 samples"):
        compute_features(corpus, Filterbank(), num_processes=2)


def test_an_interruption_leaves_nothing_behind(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")

    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute_features(corpus, Means(), progress=interrupt)
    assert list((corpus.path / "features").iterdir()) == []
    assert len(compute_features(corpus, Means())) == 6


def test_values_beyond_float16_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"utterance a-0é .*does not fit into float16"):
        compute_features(write_corpus(tmp_path / "corpus"), Means(scale=1e8))


def test_float16_holds_its_largest_number_and_refuses_nan() -> None:
    assert as_float16(np.array([[65504.0]])) == 65504
    with pytest.raises(ValueError, match="not finite"):
        as_float16(np.array([[np.nan]]))


def test_no_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_processes must be at least 1"):
        compute_features(write_corpus(tmp_path / "corpus"), Means(), num_processes=0)


@pytest.mark.parametrize("name", [*FILES, *SUMS])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = compute_features(write_corpus(tmp_path / "corpus"), Means()).folder
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=name):
        FeatureStore.open(folder)


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no feature store"):
        FeatureStore.open(tmp_path)


def test_a_store_of_a_later_format_is_refused(tmp_path: Path) -> None:
    folder = compute_features(write_corpus(tmp_path / "corpus"), Means()).folder
    about = json.loads((folder / "store.json").read_text()) | {"format": "antiphon-features/9"}
    (folder / "store.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="antiphon-features/9"):
        FeatureStore.open(folder)


def test_a_store_sent_to_another_process_is_opened_there_not_copied(tmp_path: Path) -> None:
    store = compute_features(write_corpus(tmp_path / "corpus"), Means())
    sent = pickle.dumps(store)
    assert len(sent) < 1000
    np.testing.assert_array_equal(pickle.loads(sent).features(5), store.features(5))


def test_ten_thousand_clients_cost_their_index_only(tmp_path: Path) -> None:
    """Nothing but arrays of the index and names is kept in memory: frames and texts stay mapped."""
    store = compute_features(write_corpus(tmp_path / "corpus", num_utterances=30), Means())
    arrays = [
        value for value in vars(store).values() if isinstance(value, np.ndarray) and value.flags.owndata
    ]
    assert sum(array.nbytes for array in arrays) <= len(store) * 64 + 64
