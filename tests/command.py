"""The command line in another process, where a kill is a kill.

`in_fork` runs `antiphon ...` in a fork of a clean process that has imported torch already: a second a run
instead of five, `script_in_fork` a script. A `Fault` sends that process a signal at the n-th call
of some function.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pkgutil
import runpy
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from antiphon.records.maker import process_state

# A recipe made so small that it runs in a second, and still learns: validation and the best round matter.
SETTINGS = [
    "frontend.dim=8",
    "model.encoder.dim=16",
    "model.encoder.num_layers=1",
    "model.encoder.num_heads=2",
    "model.encoder.kernel_size=3",
    "model.encoder.stack=2",
    "runs.seed.rounds.total=3",
    "runs.seed.rounds.valid_every=1",
    "runs.seed.algorithm.local.steps=20",
    "runs.seed.algorithm.local.lr=0.02",
    "runs.fedavg.rounds.total=4",
    "runs.fedavg.rounds.cohort=3",
    "runs.fedavg.rounds.save_every=2",
    "runs.fedavg.algorithm.local.batch_seconds=1.0",
]


PATIENCE = 600.0  # seconds: a script may start a dozen processes on a busy machine


@dataclass(frozen=True)
class Fault:
    """Signals to the process itself at a call of the function at `place`, before or after it."""

    place: str
    number: int
    signal: int = signal.SIGKILL
    before: bool = True
    times: int = 1

    def arm(self) -> None:
        owner, _, name = self.place.rpartition(".")
        original, calls = pkgutil.resolve_name(self.place), 0

        def faulty(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == self.number and self.before:
                self.strike()
            result = original(*args, **kwargs)
            if calls == self.number and not self.before:
                self.strike()
            return result

        setattr(pkgutil.resolve_name(owner), name, faulty)

    def strike(self) -> None:
        for _ in range(self.times):
            os.kill(os.getpid(), self.signal)


@dataclass(frozen=True)
class Done:
    """A process that ended: its exit code (minus the signal that killed it) and what it printed."""

    code: int
    output: str


Antiphon = Callable[..., Done]  # the command line: arguments -> how it ended


def run_arguments(data: Path, out: Path, *more: str, settings: Sequence[str] = ()) -> list[str]:
    chosen = [word for setting in [*SETTINGS, *settings] for word in ("--set", setting)]
    return ["run", "fedavg", "--data", str(data), "--out", str(out), *more, *chosen]


def start_fork_server() -> None:
    """In the background; before anything else asks for one, for the first that asks says what it imports."""
    forkserver.set_forkserver_preload(["antiphon.cli", "antiphon.experiment.runner"])
    forkserver.ensure_running()


def in_fork(
    arguments: Sequence[str], log: Path, fault: Fault | None = None, packages: Sequence[Path] = ()
) -> Done:
    """As `antiphon <arguments>`, with folders of installed packages."""
    return _forked(_main, (list(arguments), fault, packages), log)


def script_in_fork(
    script: Path, arguments: Sequence[str], log: Path, fault: Fault | None = None, folder: Path | None = None
) -> Done:
    """As `python <script> <arguments>`, in a working folder."""
    return _forked(_script, (script, list(arguments), fault, folder), log)


@contextmanager
def stopped_at(fault: Fault, arguments: Sequence[str], log: Path) -> Iterator[Callable[[], Done]]:
    """`antiphon <arguments>`, stopped by a fault's SIGSTOP; call what is yielded to have it go on and end."""
    assert fault.signal == signal.SIGSTOP
    process = _started(_main, (list(arguments), fault, ()), log)
    assert process.pid is not None
    try:
        while process_state(process.pid)[0] != "T":
            assert process.is_alive(), log.read_text()
            time.sleep(0.01)
        yield lambda: (os.kill(process.pid, signal.SIGCONT), _ended(process, arguments, log))[1]  # type: ignore[arg-type]
    finally:
        process.kill()
        process.join()


def _forked(target: Callable[..., None], arguments: Sequence[Any], log: Path) -> Done:
    return _ended(_started(target, arguments, log), arguments, log)


def _started(target: Callable[..., None], arguments: Sequence[Any], log: Path) -> ForkServerProcess:
    start_fork_server()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_logged, args=(log, target, *arguments))
    process.start()
    return process


def _ended(process: ForkServerProcess, arguments: Sequence[Any], log: Path) -> Done:
    process.join(PATIENCE)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"{arguments} did not end; it said: {log.read_text()}")
    return Done(process.exitcode, log.read_text())


def _logged(log: Path, target: Callable[..., None], *arguments: Any) -> None:
    """In the new process."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    target(*arguments)


def _main(arguments: list[str], fault: Fault | None, packages: Sequence[Path]) -> None:
    from antiphon import cli
    from antiphon.experiment import runner

    sys.path[:0] = map(str, packages)
    sys.argv = ["antiphon", *arguments]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]  # `--workers` and `--jobs` start it again
    runner.write_report = lambda *args: None  # drawing takes longer than all the rest
    if fault is not None:
        fault.arm()
    cli.main()


def _script(script: Path, arguments: list[str], fault: Fault | None, folder: Path | None) -> None:
    if folder is not None:
        os.chdir(folder)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    if fault is not None:
        fault.arm()
    runpy.run_path(str(script), run_name="__main__")


def kept_files(out: Path) -> dict[str, Any]:
    """What must be the same however often an experiment was stopped."""
    kept: dict[str, Any] = {}
    for name, last in (("seed", 3), ("fedavg", 4)):
        run = out / name
        files = [run / "journal.jsonl", run / "model" / "model.safetensors", run / "model" / "model.json"]
        files.append(run / "checkpoints" / f"round-{last:06d}" / "state.safetensors")
        files += sorted((run / "evaluation").rglob("*.trn"))
        kept |= {str(file.relative_to(out)): file.read_bytes() for file in files}
        for scores in sorted((run / "evaluation").rglob("scores.json")):
            body = json.loads(scores.read_text())
            del body["real_time_factor"], body["sha256"]
            kept[str(scores.relative_to(out))] = body
    return kept
