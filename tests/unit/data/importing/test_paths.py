"""No path in a source may lead out of it: absolute, with .., through a link, into or inside a tar."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from antiphon.data.importing.candidates import Blob, ImportOptions, RefusedError, Skipped, find_audio, locate
from antiphon.data.importing.formats import FORMATS


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "secret.flac").write_bytes(b"secret")
    (tmp_path / "source" / "sub").mkdir(parents=True)
    (tmp_path / "source" / "sub" / "a.flac").write_bytes(b"fine")
    return tmp_path / "source"


def read_one(source: Path, **fields: Any) -> Blob | str:
    row = {"id": "a", "path": "sub/a.flac", "speaker": "ann", "text": "a"} | fields
    (source / "manifest.jsonl").write_text(json.dumps(row))
    (item,) = FORMATS["manifest"]().read(source, ImportOptions())
    return item.reason if isinstance(item, Skipped) else item.audio


def write_tar(path: Path, **members: Any) -> None:
    with tarfile.open(path, "w") as tar:
        for name, (kind, content) in members.items():
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content
                tar.addfile(info)


def test_a_path_inside_is_found(source: Path) -> None:
    assert locate("sub/../sub/a.flac", source, ImportOptions()) == (source / "sub" / "a.flac").resolve()


@pytest.mark.parametrize("path", ["../secret.flac", "sub/../../secret.flac", "/etc/passwd"])
def test_a_path_outside_is_refused(source: Path, path: str) -> None:
    assert str(read_one(source, path=path)).startswith("path outside the source folder")


def test_a_link_that_leads_outside_is_refused(source: Path) -> None:
    os.symlink(source.parent / "secret.flac", source / "link.flac")
    os.symlink(source.parent, source / "up")
    for path in ("link.flac", "up/secret.flac"):
        assert str(read_one(source, path=path)).startswith("path outside the source folder")


def test_a_link_that_stays_inside_is_followed(source: Path) -> None:
    os.symlink(source / "sub" / "a.flac", source / "link.flac")
    assert isinstance(read_one(source, path="link.flac"), Blob)


def test_a_link_to_itself_is_refused(source: Path) -> None:
    os.symlink("loop.flac", source / "loop.flac")
    assert isinstance(read_one(source, path="loop.flac"), str)


def test_a_device_is_not_a_file(source: Path) -> None:
    os.mkfifo(source / "pipe.flac")
    assert read_one(source, path="pipe.flac") == "missing file: pipe.flac"


def test_audio_root_is_one_more_folder_and_no_more(source: Path, tmp_path: Path) -> None:
    options = ImportOptions(audio_root=tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.flac").write_bytes(b"b")
    assert isinstance(find_audio(str(tmp_path / "elsewhere" / "b.flac"), source, options), Blob)
    assert isinstance(find_audio("b.flac", source, options), Blob)
    assert isinstance(find_audio("sub/a.flac", source, options), Blob)
    with pytest.raises(RefusedError, match="nor in --audio-root"):
        locate(str(tmp_path / "secret.flac"), source, options)


def test_a_link_into_audio_root_is_followed_and_one_that_leaves_both_is_refused(
    source: Path, tmp_path: Path
) -> None:
    root = tmp_path / "elsewhere"
    root.mkdir()
    (root / "b.flac").write_bytes(b"b")
    os.symlink(root / "b.flac", source / "file.flac")
    os.symlink(root, source / "folder")
    os.symlink(tmp_path / "secret.flac", source / "out.flac")
    os.symlink(tmp_path / "secret.flac", root / "out_of_root.flac")
    os.symlink(source / "sub" / "a.flac", root / "back.flac")
    os.symlink(root, tmp_path / "link_to_root")
    for trusted in (root, str(root), tmp_path / "link_to_root"):  # audio_root may be a link itself
        options = ImportOptions(audio_root=trusted)
        for path in ("file.flac", "folder/b.flac"):
            assert locate(path, source, options) == (root / "b.flac").resolve()
        assert locate("back.flac", source, options) == (source / "sub" / "a.flac").resolve()
        for path in ("out.flac", "out_of_root.flac", "folder/out_of_root.flac"):
            with pytest.raises(RefusedError, match="path outside the source folder"):
                locate(path, source, options)
        with pytest.raises(RefusedError, match="missing file"):
            locate("folder/gone.flac", source, options)
    for path in ("file.flac", "folder/b.flac"):
        with pytest.raises(RefusedError, match="--audio-root names one more folder"):
            locate(path, source, ImportOptions())


def test_a_tar_outside_is_refused(source: Path) -> None:
    write_tar(source.parent / "out.tar", a=(tarfile.REGTYPE, b"x"))
    assert str(read_one(source, tar="../out.tar", path="a")).startswith("path outside the source folder")


@pytest.mark.parametrize("path", ["../a.flac", "/etc/passwd", "sub/../../a.flac"])
def test_a_tar_member_that_would_unpack_outside_is_refused(source: Path, path: str) -> None:
    write_tar(source / "audio.tar", **{path: (tarfile.REGTYPE, b"x")})
    assert str(read_one(source, path=path)).startswith("path outside the source folder")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_tar_member_that_is_a_link_is_refused(source: Path, kind: bytes) -> None:
    write_tar(source / "audio.tar", link=(kind, "/etc/passwd"))
    assert str(read_one(source, path="link")).startswith("bad tar member: link is a link")


def test_tar_members_are_read_where_they_lie(source: Path) -> None:
    write_tar(source / "audio.tar", first=(tarfile.REGTYPE, b"x" * 700), second=(tarfile.REGTYPE, b"here"))
    blob = read_one(source, path="second")
    assert isinstance(blob, Blob)
    assert blob.open().read() == b"here"
    assert blob.open().read() == b"here"


def test_a_damaged_tar_gives_what_is_whole_and_says_so_for_the_rest(source: Path) -> None:
    write_tar(source / "audio.tar", first=(tarfile.REGTYPE, b"x"), second=(tarfile.REGTYPE, b"y" * 5000))
    whole = (source / "audio.tar").read_bytes()
    (source / "audio.tar").write_bytes(whole[:2500])
    assert isinstance(read_one(source, path="first"), Blob)
    assert "second" in str(read_one(source, path="second"))
    (source / "audio.tar").write_bytes(b"\x1f\x8b this is no tar" * 100)
    assert "damaged or compressed" in str(read_one(source, path="first"))
