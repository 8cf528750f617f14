"""What an import leaves behind: the same bytes every time, a whole corpus or nothing."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sources import Source, tone

from antiphon.data.audio import encode_flac
from antiphon.data.importing.conversion import ImportOptions, ImportSummary, import_corpus

soundfile = pytest.importorskip("soundfile")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_source_gives_the_same_bytes(source: Source, tmp_path: Path) -> None:
    soundfile.write(source.folder / "low.wav", tone(rate=8000), 8000)
    source.line('{"id": "low", "path": "low.wav", "speaker": "ann", "text": "low"}')
    for number in range(20):
        source.add(f"u{number}", data=None if number % 3 else b"junk", speaker=f"s{number % 4}")
    for name, num_threads in (("one", 1), ("two", 5)):
        import_corpus(source.folder, tmp_path / name, ImportOptions(num_threads=num_threads))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert set(contents(tmp_path / "one")) == {
        "corpus.json",
        "utterances.jsonl",
        "audio.pack",
        "audio.pack.sums",
        "skipped.jsonl",
    }


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interrupted_import_leaves_nothing(source: Source, tmp_path: Path, error: BaseException) -> None:
    def progress(done: int, total: int | None) -> None:
        if total is not None and done == 3:
            raise error

    for number in range(30):
        source.add(f"u{number}")
    with pytest.raises(type(error)):
        import_corpus(source.folder, tmp_path / "corpus", progress=progress)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_full_disk_is_reported_and_leaves_nothing(source: Source, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    source.add("loud", data=encode_flac(np.random.default_rng(0).uniform(-1, 1, 64000).astype(np.float32)))
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (20_000, hard)
    )  # no file may grow past this: Python ignores the signal
    try:
        with pytest.raises(OSError, match="large"):
            import_corpus(source.folder, tmp_path / "corpus")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_an_existing_destination_is_kept_unless_overwriting(
    source: Source, run: Callable[..., ImportSummary], tmp_path: Path
) -> None:
    before = contents(run().path)
    source.add("b")
    with pytest.raises(ValueError, match="exists already"):
        run()
    assert contents(tmp_path / "corpus") == before
    assert run(overwrite=True).num_utterances == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "source"]


def test_a_failed_overwrite_keeps_the_old_corpus(source: Source, run: Callable[..., ImportSummary]) -> None:
    summary = run()
    before = contents(summary.path)
    with pytest.raises(ValueError, match="nothing in"):
        run(overwrite=True, alphabet="x")
    assert contents(summary.path) == before


def test_only_a_corpus_is_ever_overwritten(source: Source, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="only a corpus is ever overwritten"):
        import_corpus(source.folder, precious, ImportOptions(overwrite=True))
    with pytest.raises(ValueError, match="holds the source"):
        import_corpus(source.folder, tmp_path, ImportOptions(overwrite=True))
