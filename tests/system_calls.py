"""The system calls of a command, and what of its files a power cut would leave.

`traced` runs a command under strace. `Disk` follows its calls: which files have data that no fsync has
confirmed, and which names of files no fsync of their folder has confirmed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CALLS = "write,writev,pwrite64,pwritev,ftruncate,copy_file_range,sendfile,fsync,fdatasync,rename,renameat,"
CALLS += "renameat2,openat,mkdir,mkdirat,unlink,unlinkat,rmdir"


@dataclass(frozen=True)
class Call:
    """A system call that succeeded: its name, and the paths that it is about."""

    name: str
    paths: tuple[Path, ...]
    makes: bool = False  # a file, if there is none


def traced(command: Sequence[str], trace: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a command under strace, which writes to `trace`."""
    strace = ["strace", "-f", "-y", "-s", "0", "-o", str(trace), *options, *command]
    return subprocess.run(strace, capture_output=True, text=True, check=False, timeout=600)


def calls_in(trace: Path) -> Iterator[Call]:
    """Yield the calls of a trace that wrote something, or made something durable."""
    for line in trace.read_text(errors="replace").splitlines():
        match = re.match(r"(?:\d+ +)?(\w+)\((.*?)(?:\) += (-?\d+)| <unfinished)", line)
        if match is None or (match[3] or "0").startswith("-"):
            continue
        name, arguments = match[1], match[2]
        opened, quoted = re.findall(r"\d+<(/[^>]*)>", arguments), re.findall(r'"([^"]*)"', arguments)
        if name.startswith("rename"):
            yield Call("rename", tuple(map(Path, quoted)))
        elif name in ("mkdir", "mkdirat"):
            yield Call("make", (Path(quoted[0]),))
        elif name in ("unlink", "unlinkat", "rmdir"):
            yield Call("remove", (Path(quoted[0]),))
        elif name == "openat" and "O_CREAT" in arguments:
            yield Call("make", (Path(quoted[0]),))
        elif name in ("fsync", "fdatasync") and opened:
            yield Call("sync", (Path(opened[0]),))
        elif name != "openat" and opened:  # copy_file_range writes to the second file
            yield Call("write", (Path(opened[-1 if name == "copy_file_range" else 0]),))


@dataclass
class Disk:
    """Files below a folder whose data, or whose names, a power cut could take away."""

    root: Path
    names: set[Path] = field(default_factory=set)  # that exist
    unsynced_data: set[Path] = field(default_factory=set)
    unsynced_names: set[Path] = field(default_factory=set)

    def follow(self, call: Call) -> None:
        paths = [path for path in call.paths if path.is_relative_to(self.root)]
        if not paths:
            return
        path = paths[-1]
        if call.name == "make" and path not in self.names:
            self.names.add(path)
            self.unsynced_names.add(path)
        elif call.name == "write":
            self.unsynced_data.add(path)
        elif call.name == "sync":
            self.unsynced_data.discard(path)
            self.unsynced_names -= {name for name in self.unsynced_names if name.parent == path}
        elif call.name == "remove":
            self._forget(path)
        elif call.name == "rename":
            self._forget(path)
            for group in (self.names, self.unsynced_data, self.unsynced_names):
                moved = {name for name in group if name.is_relative_to(paths[0])}
                group -= moved
                group |= {path / name.relative_to(paths[0]) for name in moved}
            self.unsynced_names.add(path)

    def _forget(self, path: Path) -> None:
        for group in (self.names, self.unsynced_data, self.unsynced_names):
            group -= {name for name in group if name.is_relative_to(path)}

    def unsafe(self) -> list[str]:
        """What a power cut could take away, except what is not complete yet."""
        lost = {f"data of {path.relative_to(self.root)}" for path in self.unsynced_data if is_whole(path)}
        lost |= {f"name of {path.relative_to(self.root)}" for path in self.unsynced_names if is_whole(path)}
        return sorted(lost)


def is_whole(path: Path) -> bool:
    """Whether a file or folder has its own name, and so has every folder that it is in."""
    return not any(part.startswith(".") or part.endswith(".writing") for part in path.parts)
