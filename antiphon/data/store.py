"""Features on disk: computed once, in parallel, then read per utterance without loading the rest.

A store is a folder, `<corpus>/features/<front end key>/`:

  store.json   what it is: front end, corpus fingerprint, names of speakers, sessions and splits
  index.npz    arrays over utterances: first frame, seconds, codes of speaker, session and split,
               where the id and the text begin
  frames.f16   float16 [all frames, dim], memory-mapped
  ids.txt, texts.txt   UTF-8, one after another without separators, memory-mapped

Only index.npz and the names are in memory: about 40 bytes per utterance. A store is written under another
name and renamed when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data.corpus import Corpus, Utterance
from antiphon.data.extraction import Extracted, extract_in_order
from antiphon.data.frontends import Frontend
from antiphon.records.files import new_folder

FORMAT = "antiphon-features/1"
Progress = Callable[[int, int], None]  # (utterances done, utterances in all)


class FeatureStore:
    """Frames, texts and names of a corpus's utterances, by index 0 … len - 1.

    num_frames [n] int32, first_frame [n + 1] int64, seconds [n] float32, and the codes [n] int32 of
    `speaker_names`, `session_names` and `split_names` are in memory; `frames` [all, dim] float16 is a
    read-only view of the file, and everything else is read when needed. `other_texts` replace those of the
    file.
    """

    def __init__(
        self,
        folder: Path,
        about: dict[str, Any],
        index: dict[str, np.ndarray],
        other_texts: Mapping[int, str] | None = None,
    ) -> None:
        self.folder, self.other_texts = folder, other_texts or {}
        self.fingerprint: str = about["fingerprint"]
        self.dim: int = about["dim"]
        self.frames_per_second: float = about["frames_per_second"]
        self.speaker_names: list[str] = about["speakers"]
        self.session_names: list[str] = about["sessions"]
        self.split_names: list[str] = about["splits"]
        self.seconds = index["seconds"]
        self.speaker_codes, self.session_codes = index["speaker"], index["session"]
        self.split_codes = index["split"]
        self.first_frame, self._id_at, self._text_at = index["frame_at"], index["id_at"], index["text_at"]
        self.num_frames = np.diff(self.first_frame).astype(np.int32)
        self._map = mapped(folder / "frames.f16", 2 * self.dim * int(self.first_frame[-1]))
        self.frames = np.frombuffer(self._map, dtype=np.float16).reshape(-1, self.dim)
        self._ids = mapped(folder / "ids.txt", int(self._id_at[-1]))
        self._texts = mapped(folder / "texts.txt", int(self._text_at[-1]))

    @classmethod
    def open(cls, folder: str | Path, other_texts: Mapping[int, str] | None = None) -> FeatureStore:
        """Open the store in `folder`; refuse one that is not a store or whose files are damaged."""
        folder = Path(folder)
        try:
            about = json.loads((folder / "store.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder} is not a feature store (cannot read store.json: {error})") from error
        if about.get("format") != FORMAT:
            raise ValueError(f"{folder} has format {about.get('format')!r}; this antiphon reads {FORMAT!r}")
        try:
            with np.load(folder / "index.npz", allow_pickle=False) as file:
                index = {name: file[name] for name in file.files}
        except Exception as error:  # zipfile, zlib and numpy each raise their own
            raise ValueError(f"{folder / 'index.npz'} is damaged ({error}): delete {folder}") from error
        return cls(folder, about, index, other_texts)

    def without_texts(self, indices: np.ndarray) -> FeatureStore:
        """The same store with empty texts for these utterances, as if nobody had transcribed them."""
        return FeatureStore.open(self.folder, {**self.other_texts, **dict.fromkeys(indices.tolist(), "")})

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process maps the files again; their contents are not sent.
        return FeatureStore.open, (self.folder, self.other_texts)

    def __len__(self) -> int:
        return len(self.num_frames)

    def features(self, index: int) -> np.ndarray:
        """The frames of one utterance: float16 [frames, dim], a read-only view of the file."""
        assert 0 <= index < len(self), index
        return self.frames[self.first_frame[index] : self.first_frame[index + 1]]

    def expect(self, indices: np.ndarray) -> None:
        """Have the system read these utterances' frames from disk in the background."""
        if not hasattr(mmap, "MADV_WILLNEED") or not isinstance(self._map, mmap.mmap):
            return
        for first, last in _stretches(np.unique(indices)):
            start, stop = (2 * self.dim * int(self.first_frame[index]) for index in (first, last + 1))
            start -= start % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, start, stop - start)

    def id(self, index: int) -> str:
        return self._ids[self._id_at[index] : self._id_at[index + 1]].decode()

    def text(self, index: int) -> str:
        if index in self.other_texts:
            return self.other_texts[index]
        return self._texts[self._text_at[index] : self._text_at[index + 1]].decode()

    def speaker(self, index: int) -> str:
        return self.speaker_names[self.speaker_codes[index]]

    def session(self, index: int) -> str:
        return self.session_names[self.session_codes[index]]

    def split(self, index: int) -> str:
        return self.split_names[self.split_codes[index]]

    def where(self, split: str | None = None, speakers: Iterable[str] | None = None) -> np.ndarray:
        """Indices [m] int64, increasing, of the utterances of a split and of some speakers."""
        chosen = np.ones(len(self), dtype=bool)
        if split is not None:
            chosen &= self.split_codes == self._code(split, self.split_names, "split")
        if speakers is not None:
            codes = {name: code for code, name in enumerate(self.speaker_names)}
            wanted = list(speakers)
            missing = sorted(set(wanted) - codes.keys())
            if missing:
                raise ValueError(f"no such speakers in {self.folder}: {', '.join(missing[:5])}")
            chosen &= np.isin(self.speaker_codes, [codes[name] for name in wanted])
        return np.flatnonzero(chosen)

    def speakers(self, split: str | None = None) -> list[str]:
        """The speakers of a split, sorted by name."""
        return sorted(self.speaker_names[code] for code in np.unique(self.speaker_codes[self.where(split)]))

    def _code(self, name: str, names: list[str], what: str) -> int:
        if name not in names:
            raise ValueError(f"no {what} {name!r} in {self.folder}: there are {', '.join(sorted(names))}")
        return names.index(name)


def _stretches(indices: np.ndarray) -> list[tuple[int, int]]:
    """First and last index of every run of consecutive indices.

    >>> _stretches(np.array([3, 4, 5, 8]))
    [(3, 5), (8, 8)]
    """
    runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    return [(int(run[0]), int(run[-1])) for run in runs if len(run)]


def mapped(path: Path, num_bytes: int) -> mmap.mmap | bytes:
    """The file, memory-mapped read-only; refused if it is missing or its length is not that of the index."""
    size = path.stat().st_size if path.is_file() else -1
    if size != num_bytes:
        state = "missing" if size < 0 else f"{size} bytes"
        raise ValueError(f"{path} is damaged: {state}, expected {num_bytes} bytes; delete {path.parent}")
    if num_bytes == 0:
        return b""  # an empty file cannot be mapped
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def compute_features(
    corpus: Corpus, frontend: Frontend, num_processes: int = 1, progress: Progress | None = None
) -> FeatureStore:
    """The corpus's features by `frontend`: opened if they exist, computed if not or if the corpus changed.

    More than one worker starts that many processes; the bytes written are the same.
    """
    fingerprint = corpus_fingerprint(corpus)

    def extract() -> Extracted:
        return extract_in_order(corpus, frontend, num_processes)

    return stored(corpus, frontend, frontend.key(), fingerprint, extract, progress)


def borrow_features(
    corpus: Corpus,
    lender: Corpus,
    ids: frozenset[str],
    frontend: Frontend,
    num_processes: int = 1,
    progress: Progress | None = None,
) -> FeatureStore:
    """The corpus's features; those of `ids`, utterances that both have, from the lender if it has features.

    Running an encoder takes longer than anything else here, so frames that were computed once are copied.
    Nothing is written to the lender.
    """
    folder = Path(lender.path) / "features" / frontend.key()
    store = FeatureStore.open(folder) if folder.exists() else None
    if store is None or store.fingerprint != corpus_fingerprint(lender):
        return compute_features(corpus, frontend, num_processes, progress)
    indices = {store.id(index): index for index in range(len(store))}

    def known(_: int, utterance: Utterance) -> np.ndarray | None:
        return store.features(indices[utterance.id]) if utterance.id in ids else None

    def extract() -> Extracted:
        return extract_in_order(corpus, frontend, num_processes, known)

    return stored(corpus, frontend, frontend.key(), corpus_fingerprint(corpus), extract, progress)


def stored(
    corpus: Corpus,
    frontend: Frontend,
    key: str,
    fingerprint: str,
    extract: Callable[[], Extracted],
    progress: Progress | None,
) -> FeatureStore:
    """The corpus's store called `key`: opened if it exists with this fingerprint, else written."""
    folder = Path(corpus.path) / "features" / key
    if folder.exists():
        store = FeatureStore.open(folder)
        if store.fingerprint == fingerprint:
            return store
    about = {
        "format": FORMAT,
        "frontend": frontend.key(),
        "fingerprint": fingerprint,
        "dim": frontend.dim,
        "frames_per_second": frontend.frames_per_second,
    }
    with new_folder(folder) as building:
        _write(building, about, corpus, extract(), progress)
    return FeatureStore.open(folder)


def corpus_fingerprint(corpus: Corpus) -> str:
    """The SHA-256 of the corpus's list of utterances, which changes with any utterance."""
    with (Path(corpus.path) / "utterances.jsonl").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Rows:
    """The rows of the index, collected utterance by utterance."""

    def __init__(self) -> None:
        self.frame_at, self.id_at, self.text_at = [0], [0], [0]
        self.seconds: list[float] = []
        self.codes: dict[str, list[int]] = {"speaker": [], "session": [], "split": []}
        self.names: dict[str, dict[str, int]] = {"speaker": {}, "session": {}, "split": {}}

    def add(self, utterance: Utterance, num_frames: int, num_id_bytes: int, num_text_bytes: int) -> None:
        self.frame_at.append(self.frame_at[-1] + num_frames)
        self.id_at.append(self.id_at[-1] + num_id_bytes)
        self.text_at.append(self.text_at[-1] + num_text_bytes)
        self.seconds.append(utterance.seconds)
        for what, name in (
            ("speaker", utterance.speaker),
            ("session", utterance.session),
            ("split", utterance.split),
        ):
            self.codes[what].append(self.names[what].setdefault(name, len(self.names[what])))

    def arrays(self) -> dict[str, np.ndarray]:
        starts = {"frame_at": self.frame_at, "id_at": self.id_at, "text_at": self.text_at}
        return (
            {name: np.array(values, dtype=np.int64) for name, values in starts.items()}
            | {name: np.array(values, dtype=np.int32) for name, values in self.codes.items()}
            | {"seconds": np.array(self.seconds, dtype=np.float32)}
        )


def _write(
    folder: Path,
    about: dict[str, Any],
    corpus: Corpus,
    extracted: Extracted,
    progress: Progress | None,
) -> None:
    total = sum(1 for _ in corpus.utterances())
    if total == 0:
        raise ValueError(f"the corpus {corpus.path} has no utterances")
    rows = Rows()
    with (
        (folder / "frames.f16").open("wb") as frames_file,
        (folder / "ids.txt").open("wb") as ids_file,
        (folder / "texts.txt").open("wb") as texts_file,
        closing(extracted),  # ends the worker processes before the folder goes, whatever happens
    ):
        for done, (utterance, frames) in enumerate(extracted, 1):
            frames_file.write(frames.tobytes())
            num_id_bytes = ids_file.write(utterance.id.encode())
            num_text_bytes = texts_file.write(utterance.text.encode())
            rows.add(utterance, len(frames), num_id_bytes, num_text_bytes)
            if progress is not None:
                progress(done, total)
    np.savez(folder / "index.npz", allow_pickle=False, **rows.arrays())
    names = {f"{what}s": list(codes) for what, codes in rows.names.items()}
    (folder / "store.json").write_text(json.dumps(about | names, ensure_ascii=False), encoding="utf-8")
