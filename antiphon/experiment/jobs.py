"""`--jobs N`: runs of an experiment side by side, each in its own process.

Several runs can share a GPU that one small model would leave idle most of the time. A job is this same
command with the name of its run in the environment. It writes to the run's folder and nowhere else, so its
files are the same as if it ran alone. A run waits for the runs it needs (it starts from their models, or
they teach it). If a run fails, the runs that need it are not started; all others go on.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from antiphon.core import Stopped
from antiphon.pools.signals import REASONS
from antiphon.pools.spawning import passing_signals_on, started_again
from antiphon.records.files import make_folder
from antiphon.records.journal import parse_entry, read
from antiphon.records.writer import Listener

JOB = "ANTIPHON_JOB"  # in a job's environment: the name of its run
OUTPUT = "output.txt"  # in the run's folder: what its process printed
INTERVAL = 0.3  # seconds between two looks at the jobs


def run_jobs(
    needs: Mapping[str, Collection[str]],
    num_jobs: int,
    out: Path,
    listen: Callable[[str], Listener],
    scores_of: Callable[[str], Mapping[str, Any] | None] = lambda name: None,
) -> dict[str, str]:
    """Execute runs, each of which may need others; return those that failed, with the reason.

    `scores_of` returns the scores of a finished run, for its listener.
    Raises `Stopped` when interrupted; the runs in progress have then saved their state.
    """
    waiting = dict(needs)
    running: dict[str, Job] = {}
    failed: dict[str, str] = {}
    processes: list[subprocess.Popen[bytes]] = []
    with passing_signals_on(processes) as interrupts:
        while running or (waiting and not interrupts):
            for name, job in list(running.items()):
                code = job.look()
                if code is not None:
                    del running[name]
                    failed |= {name: job.reason(code)} if code else {}
                    job.listener.ended(None if code else scores_of(name))
            while blocked := [name for name in waiting if failed.keys() & set(waiting[name])]:
                first = next(need for need in waiting.pop(blocked[0]) if need in failed)
                failed[blocked[0]] = f"it needs {first}, which failed"
            unfinished = waiting.keys() | running.keys()
            ready = [name for name in waiting if not unfinished & set(waiting[name])]
            for name in [] if interrupts else ready[: num_jobs - len(running)]:
                del waiting[name]
                running[name] = job = Job.start(name, out / name, listen(name))
                processes.append(job.process)
            time.sleep(INTERVAL)
    if interrupts:
        raise Stopped(REASONS[interrupts[0]])
    return failed


@dataclass
class Job:
    """A run in another process; its journal shows its progress."""

    folder: Path
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    listener: Listener
    journal: JournalTail
    shown: int = 0  # the last round that the listener has shown

    @classmethod
    def start(cls, name: str, folder: Path, listener: Listener) -> Job:
        make_folder(folder)
        journal = JournalTail(folder / "journal.jsonl")
        shown = max((entry["round"] for entry in journal.news()), default=0)  # before the process writes more
        output = (folder / OUTPUT).open("wb")
        if shown:
            listener.resumed(shown)
        return cls(folder, started_again({JOB: name}, output), output, listener, journal, shown)

    def look(self) -> int | None:
        """Show new rounds; return the exit code if the process has ended."""
        code = self.process.poll()
        new = [entry for entry in self.journal.news() if entry["round"] > self.shown]
        clock = self._clock() if new else {}
        for entry in new:
            self.listener.finished(entry, clock.get(entry["round"], {}))
            self.shown = entry["round"]
        if code is not None:
            self.output.close()
            path = self.folder / OUTPUT
            if code == 0 and not path.stat().st_size:
                path.unlink()
        return code

    def reason(self, code: int) -> str:
        """Return why it failed: its last error message, or the last line it printed."""
        lines = (self.folder / OUTPUT).read_text(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith(("error:", "Stopped:"))] or lines
        return errors[-1] if errors else f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def _clock(self) -> dict[int, dict[str, Any]]:
        """Return the entries of clock.jsonl by round; that of the last round may be missing yet."""
        path = self.folder / "clock.jsonl"
        entries = read(path, lambda text: None) if path.exists() else []
        return {entry["round"]: entry for entry in entries}


@dataclass
class JournalTail:
    """The entries of a journal that were not read before."""

    path: Path
    offset: int = 0  # bytes that have been read

    def news(self) -> list[dict[str, Any]]:
        """Return journal entries since the last look; all of them if the journal has been cut back."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self.offset:
            self.offset = 0
        if size == self.offset:
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            new = file.read()
        lines = new[: new.rfind(b"\n") + 1]
        try:
            entries = [parse_entry(line, str(self.path)) for line in lines.splitlines()]
        except ValueError:  # it was cut back and has grown again: this is the middle of a line
            self.offset = 0
            return []
        self.offset += len(lines)
        return entries


def own_job() -> str:
    """Return the run that this process was started for; empty if it is not a job."""
    return os.environ.get(JOB, "")
