"""Features on disk: computed once, in parallel, then read per utterance without loading the rest.

A store is a folder, `<corpus>/features/<front end key>/`:

  store.json   front end, corpus fingerprint, names of speakers, sessions and splits
  index.npz    arrays over utterances: first frame, seconds, codes of speaker, session and split,
               first byte of the id and of the text
  frames.f16   float16 [all frames, dim], memory-mapped
  ids.txt, texts.txt   UTF-8, one after another without separators, memory-mapped
  NAME.sums    checksums of the blocks of each memory-mapped file

store.json has the checksums of the other files. A block is compared with its checksum when it is first read.
Only index.npz and the names are in memory: about 40 bytes per utterance. A store is written under another
name and renamed when it is complete.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data.corpus import Corpus, Utterance
from antiphon.data.extraction import Extracted, extract_in_order
from antiphon.data.frontends import Frontend
from antiphon.data.store_file import StoreFile
from antiphon.records.files import (
    SUMS,
    CheckedBlocks,
    check_name,
    private,
    write_json,
    write_sums,
)
from antiphon.records.folders import new_folder
from antiphon.records.maker import tidy
from antiphon.records.reading import read_as

FRAMES, IDS, TEXTS = "frames.f16", "ids.txt", "texts.txt"
Progress = Callable[[int, int], None]  # (utterances done, utterances in all)


class FeatureStore:
    """Frames, texts and names of a corpus's utterances, by index 0 … len - 1.

    In memory: num_frames [n] int32, first_frame [n + 1] int64, seconds [n] float32, and the codes [n] int32
    of `speaker_names`, `session_names` and `split_names`. `frames` [all, dim] float16 is a read-only view of
    the file. Everything else is read when needed. `other_texts` replace those of the file.
    """

    def __init__(
        self,
        folder: Path,
        about: StoreFile,
        index: dict[str, np.ndarray],
        other_texts: Mapping[int, str],
    ) -> None:
        self.folder, self.other_texts = folder, other_texts
        self.fingerprint, self.dim = about.fingerprint, about.dim
        self.frames_per_second = about.frames_per_second
        self.speaker_names, self.session_names = about.speakers, about.sessions
        self.split_names = about.splits
        for name in self.split_names:
            check_name(name, "split", "import the corpus again with another name (--rename-split)")
        self.seconds = index["seconds"]
        self.speaker_codes, self.session_codes = index["speaker"], index["session"]
        self.split_codes = index["split"]
        self.first_frame, self._id_at, self._text_at = index["frame_at"], index["id_at"], index["text_at"]
        self.num_frames = np.diff(self.first_frame).astype(np.int32)
        sizes = {FRAMES: 2 * self.dim * int(self.first_frame[-1])}
        sizes |= {IDS: int(self._id_at[-1]), TEXTS: int(self._text_at[-1])}
        has_sums = FRAMES + SUMS in about.files
        files = {name: MappedFile(folder / name, size, has_sums) for name, size in sizes.items()}
        self._frames, self._ids, self._texts = files[FRAMES], files[IDS], files[TEXTS]
        self._values = np.frombuffer(self._frames.map, dtype=np.float16).reshape(-1, self.dim)

    @classmethod
    def open(cls, folder: str | Path, other_texts: Mapping[int, str] | None = None) -> FeatureStore:
        """Open the store in `folder`; ValueError if it is not a store or its files are damaged."""
        folder = Path(folder)
        about = read_as(StoreFile, folder / "store.json", advice_for(folder))
        try:
            with np.load(folder / "index.npz", allow_pickle=False) as file:
                index = {name: file[name] for name in file.files}
            about.check_index(index)
        except Exception as error:  # zipfile, zlib and numpy each raise their own
            problem = f"{folder / 'index.npz'} is damaged ({error})"
            raise ValueError(f"{problem}. {advice_for(folder)}") from error
        return cls(folder, about, index, other_texts or {})

    def without_texts(self, indices: np.ndarray) -> FeatureStore:
        """Return the store with empty texts for these utterances, as if nobody had transcribed them."""
        return FeatureStore.open(self.folder, {**self.other_texts, **dict.fromkeys(indices.tolist(), "")})

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process maps the files again; their contents are not sent.
        return FeatureStore.open, (self.folder, self.other_texts)

    def __len__(self) -> int:
        return len(self.num_frames)

    def features(self, index: int) -> np.ndarray:
        """Return the frames of one utterance: float16 [frames, dim], a read-only view of the file."""
        assert 0 <= index < len(self), index
        start, stop = int(self.first_frame[index]), int(self.first_frame[index + 1])
        self._frames.check(2 * self.dim * start, 2 * self.dim * stop)
        return self._values[start:stop]

    @property
    def frames(self) -> np.ndarray:
        """The frames of all utterances: float16 [all, dim], a read-only view of the file."""
        self._frames.check(0, self._values.nbytes)
        return self._values

    def expect(self, indices: np.ndarray) -> None:
        """Have the system read these utterances' frames from disk in the background."""
        file = self._frames.map
        if not len(indices) or not hasattr(mmap, "MADV_WILLNEED") or not isinstance(file, mmap.mmap):
            return
        indices = np.unique(indices)
        for run in np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1):  # of consecutive indices
            start, stop = (2 * self.dim * int(self.first_frame[index]) for index in (run[0], run[-1] + 1))
            start -= start % mmap.PAGESIZE
            file.madvise(mmap.MADV_WILLNEED, start, stop - start)

    def id(self, index: int) -> str:
        return self._ids.text(self._id_at[index], self._id_at[index + 1])

    def text(self, index: int) -> str:
        if index in self.other_texts:
            return self.other_texts[index]
        return self._texts.text(self._text_at[index], self._text_at[index + 1])

    def speaker(self, index: int) -> str:
        return self.speaker_names[self.speaker_codes[index]]

    def session(self, index: int) -> str:
        return self.session_names[self.session_codes[index]]

    def split(self, index: int) -> str:
        return self.split_names[self.split_codes[index]]

    def where(self, split: str | None = None, speakers: Iterable[str] | None = None) -> np.ndarray:
        """Return the indices [m] int64, increasing, of the utterances of a split and of some speakers."""
        is_chosen = np.ones(len(self), dtype=bool)
        if split is not None:
            if split not in self.split_names:
                names = ", ".join(sorted(self.split_names))
                raise ValueError(f"no split {split!r} in {self.folder}: there are {names}")
            is_chosen &= self.split_codes == self.split_names.index(split)
        if speakers is not None:
            codes = {name: code for code, name in enumerate(self.speaker_names)}
            wanted = set(speakers)
            if missing := sorted(wanted - codes.keys()):
                raise ValueError(f"no such speakers in {self.folder}: {', '.join(missing[:5])}")
            is_chosen &= np.isin(self.speaker_codes, [codes[name] for name in wanted])
        return np.flatnonzero(is_chosen)

    def speakers(self, split: str | None = None) -> list[str]:
        """Return the speakers of a split, sorted by name."""
        return sorted(self.speaker_names[code] for code in np.unique(self.speaker_codes[self.where(split)]))


def advice_for(folder: Path) -> str:
    return f"Delete {folder}: the next run computes its features again"


class MappedFile:
    """A file of known size, mapped into memory; each block is compared with its checksum when first read."""

    def __init__(self, path: Path, num_bytes: int, has_sums: bool) -> None:
        self.map = mapped(path, num_bytes)
        view = memoryview(self.map)
        advice = advice_for(path.parent)
        self.check = CheckedBlocks(path, lambda start, stop: view[start:stop], has_sums, advice).check

    def text(self, start: int, stop: int) -> str:
        self.check(start, stop)
        return self.map[start:stop].decode()


def mapped(path: Path, num_bytes: int) -> mmap.mmap | bytes:
    """Map a file into memory, read-only; ValueError if it is missing or has another length."""
    size = path.stat().st_size if path.is_file() else -1
    if size != num_bytes:
        state = "missing" if size < 0 else f"{size} bytes"
        problem = f"{state}, expected {num_bytes} bytes"
        raise ValueError(f"{path} is damaged: {problem}. {advice_for(path.parent)}")
    if num_bytes == 0:
        return b""  # an empty file cannot be mapped
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def compute_features(
    corpus: Corpus,
    frontend: Frontend,
    num_processes: int = 1,
    progress: Progress | None = None,
    lender: Corpus | None = None,
    lent: frozenset[str] = frozenset(),
) -> FeatureStore:
    """Open the corpus's features by `frontend`; compute them if they are missing or the corpus changed.

    The number of processes does not change the bytes. If `lender` has features of this front end, frames of
    `lent`, the ids of utterances that both corpora have, are copied: running an encoder takes much longer.
    """
    folder = lender and Path(lender.path) / "features" / frontend.key()
    store = FeatureStore.open(folder) if folder and folder.exists() else None
    indices: dict[str, int] = {}
    if lender and store and store.fingerprint == lender.fingerprint:
        indices = {id: index for index in range(len(store)) if (id := store.id(index)) in lent}

    def known(_: int, utterance: Utterance) -> np.ndarray | None:
        return store.features(indices[utterance.id]) if store and utterance.id in indices else None

    return open_or_write(corpus, frontend, extract_in_order(corpus, frontend, num_processes, known), progress)


def open_or_write(
    corpus: Corpus, frontend: Frontend, extracted: Extracted, progress: Progress | None, corruption: str = ""
) -> FeatureStore:
    """Open the store of a corpus; write it if there is none with the same fingerprint.

    corruption: a digest of what the frames depend on besides the corpus and the front end.
    """
    key, fingerprint = frontend.key(), corpus.fingerprint
    if corruption:
        key += f"-corrupted-{corruption[:16]}"
        fingerprint = hashlib.sha256(f"{fingerprint} {corruption}".encode()).hexdigest()
    folder = Path(corpus.path) / "features" / key
    tidy(folder)
    if folder.exists():
        store = FeatureStore.open(folder)
        if store.fingerprint == fingerprint:
            return store
    about = {
        "format": StoreFile.format,
        "frontend": frontend.key(),
        "fingerprint": fingerprint,
        "dim": frontend.dim,
        "frames_per_second": frontend.frames_per_second,
    }
    with new_folder(folder, several=True) as building:
        _write(building, about, corpus, extracted, progress)
    return FeatureStore.open(folder)


def _write(
    folder: Path, about: dict[str, Any], corpus: Corpus, extracted: Extracted, progress: Progress | None
) -> None:
    total = sum(1 for _ in corpus.utterances())
    if total == 0:
        raise ValueError(f"the corpus {corpus.path} has no utterances")
    starts: dict[str, list[int]] = {"frame_at": [0], "id_at": [0], "text_at": [0]}
    codes: dict[str, list[int]] = {"speaker": [], "session": [], "split": []}
    names: dict[str, dict[str, int]] = {field: {} for field in codes}  # name -> code
    seconds: list[float] = []
    with (
        open(folder / FRAMES, "wb", opener=private) as frames_file,
        open(folder / IDS, "wb", opener=private) as ids_file,
        open(folder / TEXTS, "wb", opener=private) as texts_file,
        closing(extracted),  # ends the processes before the folder is removed, whatever happens
    ):
        for done, (utterance, frames) in enumerate(extracted, 1):
            frames_file.write(frames.tobytes())
            id_size, text_size = (
                ids_file.write(utterance.id.encode()),
                texts_file.write(utterance.text.encode()),
            )
            for begin, size in zip(starts.values(), (len(frames), id_size, text_size), strict=True):
                begin.append(begin[-1] + size)
            for field, known in names.items():
                codes[field].append(known.setdefault(getattr(utterance, field), len(known)))
            seconds.append(utterance.seconds)
            if progress is not None:
                progress(done, total)
    arrays = {name: np.array(values, dtype=np.int64) for name, values in starts.items()}
    arrays |= {name: np.array(values, dtype=np.int32) for name, values in codes.items()}
    arrays["seconds"] = np.array(seconds, dtype=np.float32)
    np.savez(folder / "index.npz", allow_pickle=False, **arrays)
    about |= {f"{field}s": list(known) for field, known in names.items()}
    sums = [write_sums(folder / name) for name in (FRAMES, IDS, TEXTS)]
    write_json(folder / "store.json", about, ["index.npz", *sums], indent=None)
