"""store.json of a feature store, and the check of the arrays in index.npz against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from antiphon.records.schema import AtLeast


@dataclass(frozen=True)
class StoreFile:
    """store.json: the front end, the corpus's fingerprint, and names, whose places are codes in the index."""

    format: ClassVar = "antiphon-features/1"
    what: ClassVar = "feature store"
    frontend: str
    fingerprint: str
    dim: Annotated[int, AtLeast(1)]
    frames_per_second: Annotated[float, AtLeast(1e-3)]
    speakers: list[str]
    sessions: list[str]
    splits: list[str]
    files: Mapping[str, str] = field(default_factory=dict)

    def check_index(self, index: Mapping[str, np.ndarray]) -> None:
        """Refuse arrays that do not fit each other or the names."""
        starts = [index[name] for name in ("frame_at", "id_at", "text_at")]
        names = {"speaker": self.speakers, "session": self.sessions, "split": self.splits}
        shape = (len(starts[0]) - 1,)
        for start in starts:
            if start.dtype != np.int64 or start.shape != (shape[0] + 1,) or start[0] != 0:
                raise ValueError("its arrays do not fit each other")
            if (np.diff(start) < 0).any():
                raise ValueError("a place in a file is before the one before it")
        for name, known in names.items():
            codes = index[name]
            if codes.dtype != np.int32 or codes.shape != shape:
                raise ValueError("its arrays do not fit each other")
            if len(codes) and not 0 <= codes.min() <= codes.max() < len(known):
                raise ValueError(f"it has a {name} that is not in store.json")
        seconds = index["seconds"]
        if seconds.dtype != np.float32 or seconds.shape != shape or not (seconds >= 0).all():
            raise ValueError("its seconds are not numbers from 0")
