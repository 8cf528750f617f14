"""Kill commands that write at random moments, repeat them, and compare what they leave with undisturbed runs.

    python tests/fuzz/kills.py --kills 300 --seed 1         # hours on a slow machine
    python tests/fuzz/kills.py --seed 1 --fault 17          # one of them again
    python tests/fuzz/kills.py --kills 20 --command run     # of some commands

A fault is a moment of a command, a signal, and who gets it. The moment is the n-th change of the file system
or the n-th import by the command's first process, or a time. The signal is SIGKILL, SIGTERM or SIGINT. It
goes to the first process only, to its process group (as Ctrl-C in a terminal), or to all processes at once
(SIGKILL, as when a machine is switched off). Then the same command is run again, with `--resume` where it has
that option.

What is checked: the exit code of a signal, no traceback, no process that stays (orphan), no command that does
not end (hang), no file with a hidden name that stays (leftover), and the same bytes in every file as in an
undisturbed run. Files and values that depend on the clock are left out: `TIMED`, `TIMED_KEYS`.

Commands run in forks of this process, which has imported torch already. They start their own processes as
always.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "stranger"))

from command import Done
from marked import marked, new_mark, wait_for_none
from writers import WRITERS, Ground, Writer, make_ground

from antiphon import cli  # noqa: F401  (imported before the forks)
from antiphon.__main__ import main as antiphon_main

PATIENCE = 600.0  # seconds after which a command hangs: a busy machine needs minutes for some
GRACE = 120.0  # seconds for the processes of a command to end after the first one
# Files that depend on the clock, or say how often a command was started.
TIMED = re.compile(r"(^|/)(clock\.jsonl|tensorboard/.*|report\.html|RESULTS\.md|output\.txt)$")
# Keys of JSON files that depend on the clock, with the checksum of the file that holds them.
TIMED_KEYS = {"real_time_factor", "clock_bytes", "sha256"}
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink"}
STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork"}


# --- Commands in forks ----------------------------------------------------------------------------


class Moments:
    """Counts changes of files in a folder and of processes, and imports; stops this process at one of them.

    stop_at: "change" or "import", and its number.
    """

    def __init__(self, folder: Path, stop_at: tuple[str, int], count: int) -> None:
        self.folder, self.stop_at, self.file = str(folder), stop_at, count
        self.numbers = {"change": 0, "import": 0}

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import":
            self._count("import")
        elif self._is_change(event, arguments):
            self._count("change")

    def _is_change(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "open":
            path, _, flags = arguments
            is_change = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        elif event in CHANGES:
            path, is_change = arguments[0], True
        else:
            path, is_change = self.folder, event in STARTS
        return bool(is_change) and str(path).startswith(self.folder)

    def _count(self, kind: str) -> None:
        self.numbers[kind] += 1
        if (kind, self.numbers[kind]) == self.stop_at:
            os.kill(os.getpid(), signal.SIGSTOP)
        os.pwrite(self.file, json.dumps(self.numbers).encode(), 0)


def launch(
    arguments: Sequence[str],
    folder: Path,
    log: Path,
    mark: dict[str, str],
    stop_at: tuple[str, int] = ("", 0),
) -> int:
    """Run a command in a fork, in a session of its own; return its process number."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for background jobs
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        count = os.open(log.with_name("count"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(mark)
        os.cpu_count = lambda: 2  # type: ignore[assignment]
        sys.argv = ["antiphon", *arguments]
        sys.orig_argv = [sys.executable, "-m", "antiphon", *arguments]
        sys.addaudithook(Moments(folder, stop_at, count))
        antiphon_main()
    except SystemExit as stop:
        code = int(stop.code or 0)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, seconds: float, untraced: bool = False) -> int | None:
    """Return the status of a process that ends, or stops if `untraced`; None if it does neither in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG | (os.WUNTRACED if untraced else 0))
        if done:
            return status
        time.sleep(0.005)
    return None


def run_whole(arguments: Sequence[str], folder: Path, log: Path) -> Done:
    """Run a command to its end."""
    mark = new_mark()
    pid = launch(arguments, folder, log, mark)
    status = wait(pid, PATIENCE)
    if status is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    wait_for_none(mark, GRACE)
    code = -999 if status is None else os.waitstatus_to_exitcode(status)
    return Done(code, log.read_text(errors="replace"))


# --- What a command leaves ------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    """All files by name, without what depends on the clock."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: timeless(path) for name, path in files.items() if not TIMED.search(name)}


def timeless(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix != ".json" or not any(f'"{key}"'.encode() in data for key in TIMED_KEYS):
        return data
    if path.name == "state.json":  # a checkpoint: its checksum comes first
        data = data.partition(b"\n")[2]
    return json.dumps(_without_times(json.loads(data))).encode()


def _without_times(body: Any) -> Any:
    if isinstance(body, dict):
        return {key: _without_times(value) for key, value in body.items() if key not in TIMED_KEYS}
    return [_without_times(value) for value in body] if isinstance(body, list) else body


def hidden(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))


def differences(expected: dict[str, bytes], found: dict[str, bytes]) -> list[str]:
    missing = [f"missing: {name}" for name in expected.keys() - found.keys()]
    more = [f"more: {name}" for name in found.keys() - expected.keys()]
    other = [f"differs: {name}" for name in expected.keys() & found.keys() if expected[name] != found[name]]
    return sorted(missing + more + other)


# --- Faults ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Undisturbed:
    """A command that nobody disturbed: what it left, how long it took, and its changes and imports."""

    files: dict[str, bytes]
    seconds: float
    counts: dict[str, int]


@dataclass(frozen=True)
class Strike:
    """A moment of a command as a share of all its changes, imports or its time, a signal, and who gets it."""

    command: str
    kind: str  # "change", "import" or "time"
    share: float
    signal: signal.Signals
    target: str  # "first", "group" or "all"

    @classmethod
    def draw(cls, seed: int, number: int, commands: Sequence[str], at: Sequence[str] = ()) -> Strike:
        chance = random.Random(f"{seed}/{number}")
        name = commands[number % len(commands)]
        kind = chance.choice(at or ["change", "change", "import", "time"])
        which = chance.choice([signal.SIGKILL] * 3 + [signal.SIGTERM, signal.SIGINT])
        target = chance.choice(["first", "all"] if which == signal.SIGKILL else ["first", "group"])
        return cls(name, kind, chance.random(), which, target)

    def __str__(self) -> str:
        return f"{self.command}: {self.signal.name} to {self.target} at {self.share:.3f} of its {self.kind}s"


@dataclass
class Verdict:
    """What was wrong after a strike; `is_late` if the command had ended before."""

    is_late: bool = False
    faults: dict[str, str] = field(default_factory=dict)  # kind -> description


@dataclass
class Trials:
    """Strikes at commands in a folder. All runs of a command have the same folder, which some files name."""

    folder: Path
    ground: Ground
    undisturbed: dict[str, Undisturbed] = field(default_factory=dict)

    @property
    def place(self) -> Path:
        return self.folder / "place"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def _begin(self, name: str) -> list[str]:
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        WRITERS[name].prepare(self.ground, self.place)
        return [str(word) for word in WRITERS[name].arguments(self.ground, self.place)]

    def reference(self, name: str) -> Undisturbed:
        """Run a command undisturbed, once."""
        if name not in self.undisturbed:
            arguments, began = self._begin(name), time.monotonic()
            done = run_whole(arguments, self.place, self.log)
            seconds = time.monotonic() - began
            assert done.code == 0, done.output
            assert not (left := hidden(self.place)), left
            counts = json.loads(self.log.with_name("count").read_text())
            self.undisturbed[name] = Undisturbed(contents(self.place), seconds, counts)
        return self.undisturbed[name]

    def strike(self, strike: Strike) -> Verdict:
        """Start a command, strike, repeat the command, and compare."""
        whole, writer, verdict = self.reference(strike.command), WRITERS[strike.command], Verdict()
        arguments, mark = self._begin(strike.command), new_mark()
        is_timed = strike.kind == "time"
        number = 0 if is_timed else 1 + int(strike.share * whole.counts[strike.kind])
        pid = launch(arguments, self.place, self.log, mark, (strike.kind, number))
        status = wait(pid, strike.share * whole.seconds if is_timed else PATIENCE, untraced=not is_timed)
        has_ended = status is not None and not os.WIFSTOPPED(status)
        if has_ended:
            verdict.is_late = True
        else:
            send(strike, pid, mark)
            status = wait(pid, PATIENCE)
        if status is None:
            verdict.faults["hang"] = self.log.read_text(errors="replace")[-500:]
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if left := wait_for_none(mark, GRACE):
            verdict.faults["orphan"] = "; ".join(left.values())
        if status is not None and strike.signal != signal.SIGKILL and not has_ended:
            verdict.faults |= dict(self._after_signal(strike, os.waitstatus_to_exitcode(status)))
        verdict.faults |= dict(self._after_repetition(strike, writer, arguments, whole))
        return verdict

    def _after_signal(self, strike: Strike, code: int) -> Iterator[tuple[str, str]]:
        output = self.log.read_text(errors="replace")
        if code not in (128 + strike.signal, 0):
            yield "exit code", f"{code}: {output[-500:]}"
        if "Traceback" in output or "Error:" in output:
            yield "traceback", output[-2000:]
        if left := hidden(self.place):
            yield "leftover", f"after the signal: {', '.join(left)}; {output[-300:]}"

    def _after_repetition(
        self, strike: Strike, writer: Writer, arguments: list[str], whole: Undisturbed
    ) -> Iterator[tuple[str, str]]:
        if not writer.is_done(self.place):
            done = run_whole([*arguments, *(["--resume"] if writer.resumes else [])], self.place, self.log)
            if done.code != 0 or "Traceback" in done.output:
                yield "cannot be repeated", f"{done.code}: {done.output[-2000:]}"
        if left := hidden(self.place):
            yield "leftover", ", ".join(left)
        if unlike := differences(whole.files, contents(self.place)):
            yield "differing", "; ".join(unlike)


def send(strike: Strike, pid: int, mark: dict[str, str]) -> None:
    """Send the signal to a process that runs or is stopped."""
    if strike.target == "group":
        os.killpg(pid, strike.signal)
    else:
        others = marked(mark) if strike.target == "all" else {}
        for number in [*others, pid]:
            try:
                os.kill(number, strike.signal)
            except ProcessLookupError:
                continue
    if strike.signal != signal.SIGKILL:
        os.kill(pid, signal.SIGCONT)


# --- The table ------------------------------------------------------------------------------------

COLUMNS = ["differing", "orphan", "leftover", "hang", "traceback", "exit code", "cannot be repeated"]


@dataclass
class Table:
    """Counts by command."""

    strikes: Counter[str] = field(default_factory=Counter)
    signals: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, strike: Strike, verdict: Verdict) -> None:
        self.strikes[strike.command] += 1
        what = "too late" if verdict.is_late else strike.signal.name
        self.signals[strike.command, what] += 1
        self.faults.update((strike.command, kind) for kind in verdict.faults)

    def __str__(self) -> str:
        kinds = ["SIGKILL", "SIGTERM", "SIGINT", "too late"]
        lines = [["command", "strikes", *kinds, *COLUMNS]]
        for name in self.strikes:
            counts = [self.signals[name, kind] for kind in kinds] + [self.faults[name, c] for c in COLUMNS]
            lines.append([name, *map(str, (self.strikes[name], *counts))])
        totals = [sum(int(line[place]) for line in lines[1:]) for place in range(1, len(lines[0]))]
        lines.append(["all", *map(str, totals)])
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        return "\n".join(
            "  ".join(word.ljust(width) if not place else word.rjust(width)
                      for place, (word, width) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="the number of strikes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", type=int, help="only the strike with this number")
    parser.add_argument(
        "--command", action="append", choices=sorted(WRITERS), help="repeatable; all by default"
    )
    parser.add_argument(
        "--at", action="append", choices=["change", "import", "time"], help="repeatable; all by default"
    )
    options = parser.parse_args()
    commands = options.command or [name for name, writer in WRITERS.items() if writer.is_here]
    numbers = range(options.kills) if options.fault is None else [options.fault]
    table, num_bad = Table(), 0
    folder = Path(tempfile.mkdtemp(prefix="kills-"))  # not by a context manager: forks would remove it, too
    try:
        ground = make_ground(folder / "ground", lambda words: run_whole(words, folder, folder / "log"))
        trials = Trials(folder, ground)
        for number in numbers:
            strike = Strike.draw(options.seed, number, commands, options.at)
            began = time.monotonic()
            verdict = trials.strike(strike)
            table.add(strike, verdict)
            num_bad += bool(verdict.faults)
            note = "too late" if verdict.is_late else "; ".join(verdict.faults) or "ok"
            print(f"{number:4d}  {strike}  {note}  ({time.monotonic() - began:.1f} s)", flush=True)
            for kind, text in verdict.faults.items():
                print(f"      {kind}: {text}", flush=True)
    finally:
        shutil.rmtree(folder)
    print(table)
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
