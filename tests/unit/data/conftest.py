"""A small source, and its import."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sources import Source

from antiphon.data.importing.conversion import ImportOptions, ImportSummary, import_corpus


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "source").add("good", split="pool")


@pytest.fixture
def run(source: Source, tmp_path: Path) -> Callable[..., ImportSummary]:
    return lambda **options: import_corpus(source.folder, tmp_path / "corpus", ImportOptions(**options))
