from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

SmallFiles = Callable[[int], AbstractContextManager[None]]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced and renamed, in order."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("finds the names of open files in /proc")
    found: list[str] = []
    fsync, replace, rename = os.fsync, os.replace, os.rename

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        found.append(f"sync {_short(os.readlink(f'/proc/self/fd/{descriptor}'))}")

    def noted_rename(source: Any, target: Any) -> None:
        found.append(f"rename {_short(source)} {_short(target)}")
        (replace if os.path.isfile(source) else rename)(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, noted_rename)
    return found


def _short(path: Any) -> str:
    """The last part of a path; a name that is not final without its process."""
    name = Path(path).name
    return name.split("-")[0] if name.startswith(".") else name


@pytest.fixture
def small_files() -> SmallFiles:
    """No file may be larger: a real error of the operating system, without a disk of its own."""

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited
