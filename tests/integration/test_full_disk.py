"""Every command that writes, on a full disk: one line with the path, nothing half-written, and it can go on.

The disk is a tmpfs, which only root can mount. ANTIPHON_FULL_DISKS is the number of sizes of the disk that
are tried with each command (1 by default).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Done, in_fork
from writers import WRITERS, Ground, Writer, make_ground

SIZE = 64 << 20
SEVERAL, SLOW = ("run with workers", "run with jobs"), pytest.mark.slow  # other commands have one process
NUM_SIZES = int(os.environ.get("ANTIPHON_FULL_DISKS", "1"))
SECONDS = {"clock.jsonl", "report.html", "RESULTS.md", "tensorboard"}  # times and dates are never the same


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    folder = tmp_path_factory.mktemp("ground")
    return make_ground(folder / "ground", lambda arguments: in_fork(arguments, folder / "log"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, mounted on a folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("only root on Linux can mount a tmpfs")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def free_bytes(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


def fill(disk: Path, left: int) -> Path:
    """Leave so many bytes free."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free_bytes(disk) - left))
    return ballast


def contents(folder: Path) -> dict[str, bytes]:
    """The files that the seed and the data decide."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "ballast" and path.suffix not in (".json", ".html", ".md")
        if not SECONDS & {path.name, path.parent.name}
    }


def call(writer: Writer, ground: Ground, folder: Path, log: Path, again: bool = False) -> Done:
    more = ["--resume"] if again and writer.resumes and any(folder.glob("[!b]*")) else []
    return in_fork([*map(str, writer.arguments(ground, folder)), *more], log)


@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW) if n in SEVERAL else n for n in WRITERS])
def test_a_full_disk_is_one_line_with_the_path_and_the_command_goes_on_when_there_is_space(
    name: str, ground: Ground, disk: Path, tmp_path: Path
) -> None:
    writer, log = WRITERS[name], tmp_path / "log"
    if not writer.is_here:
        pytest.skip(f"needs {', '.join(writer.needs)}")
    folder = disk / "folder"

    def begin() -> None:
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        folder.mkdir()
        writer.prepare(ground, folder)

    begin()
    before = free_bytes(disk)
    assert call(writer, ground, folder, log).code == 0
    needed, expected = before - free_bytes(disk), contents(folder)
    chance = random.Random(f"{name} 1")
    for share in [chance.random() for _ in range(NUM_SIZES)]:
        begin()
        ballast = fill(disk, int(share * needed))
        full = call(writer, ground, folder, log)
        said = " ".join(full.output.split())
        assert full.code not in (0, 1), (share, said)
        assert "Traceback" not in said, (share, said)
        assert f"could not write {folder}" in said, (share, said)
        assert "No space left on device" in said
        assert list(folder.rglob(".*")) == [], share
        ballast.unlink()
        again = call(writer, ground, folder, log, again=True)
        assert again.code == 0, (share, again.output)
        assert contents(folder) == expected, share
