"""What a run gives out: the files in its folder, and events for its listeners."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from antiphon.records import checkpoint
from antiphon.records.files import Damaged, make_folder, saving
from antiphon.records.journal import Journal, check_journal, clock_entry, read

Moment = tuple[int, int]  # round, call
Entry = Mapping[str, Any]
EVENTS_SUFFIX = ".antiphon"


class ClientStateFiles(Protocol):
    """The states that clients keep from round to round (`antiphon.clients.states`)."""

    expected: dict[str, Moment]

    def sync(self) -> None: ...
    def wrote(self, client: str, moment: Moment) -> None: ...
    def prune(self, rounds: Iterable[int]) -> None: ...
    def rollback(self, round: int) -> None: ...


def expected_states(entries: Iterable[Entry]) -> dict[str, Moment]:
    """Return the clients that have a state by a run's journal, with the round that wrote it."""
    expected: dict[str, Moment] = {}
    for entry in entries:
        for client, stats in entry.get("clients", {}).items():
            if "state_bytes" in stats:
                expected[client] = (int(entry["round"]) - 1, 0)
    return expected


class Listener:
    """Receives the events of one run, for a progress bar or a log. This one ignores them.

    The methods are called in the process that runs the server, between rounds or in them: a slow method makes
    the run slower. An exception stops the run; its finished rounds are saved.
    """

    def resumed(self, round: int) -> None:
        """The run goes on after `round`, the last one that an earlier process saved."""

    def replied(self, client: str) -> None:
        """A client has answered a task."""

    def at_sites(self, sites: Mapping[str, tuple[int, int]]) -> None:
        """A client at a site is done with a task, or has failed; in a federation only.

        `sites` has the number of clients of each site that are done with the task, and that were asked.
        """

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        """A round has finished. `entry` is its line of journal.jsonl, `clock` that of clock.jsonl.

        Round 0 is the validation of the starting model. `clock` may be empty if runs are separate jobs.
        """

    def ended(self, scores: Mapping[str, Any] | None) -> None:
        """The run has ended: its scores on the test speakers, as in scores.json; None if it was stopped.

        The rounds of `antiphon.personalize` are not scored one by one: `scores` is empty there.
        """


@contextmanager
def reporting_a_stop(listener: Listener) -> Iterator[None]:
    """Tell a listener that its run was stopped, if an exception ends the block."""
    try:
        yield
    except BaseException:
        listener.ended(None)
        raise


class Record:
    """The folder of a run. Call `begin` or `restore` first."""

    def __init__(self, folder: Path, keep_last: int, states: ClientStateFiles | None = None) -> None:
        self.folder, self.keep_last, self.states = folder, keep_last, states
        self.checkpoints = folder / "checkpoints"
        self.best: dict[str, float] | None = None
        self.events: EventWriter | None = None

    @property
    def has_checkpoint(self) -> bool:
        return bool(checkpoint.saved_rounds(self.checkpoints))

    def begin(self, state: Any) -> Any:
        """Empty the folder for a new run, and return its state."""
        self._open_journals()
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        if self.states is not None:
            self.states.rollback(0)
        self.clock.truncate(0)
        self.journal.truncate(0)
        self._open_events()
        return state

    def restore(self, like: Any, skip_corrupt: bool) -> Any:
        """Return the state of the newest checkpoint, and cut the journal back to that round."""
        self._open_journals()
        device = str(next(iter(like.params.values())).device)
        for round in reversed(checkpoint.saved_rounds(self.checkpoints)):
            folder = checkpoint.folder_of(self.checkpoints, round)
            try:
                state, notes = checkpoint.load(folder, like, device)
                self._check_journals(notes)
            except Damaged as error:
                if not skip_corrupt:
                    hint = "To go on from the one before it, add --skip-corrupt (Python: skip_corrupt=True)"
                    raise type(error)(f"{error}. {hint}") from error
                print(f"skipping: {error}", file=sys.stderr)
                continue
            self.best = notes["best"]
            self.clock.truncate(notes["clock_bytes"])  # first: it has checksums of lines of the journal
            self.journal.truncate(notes["journal_bytes"])
            self._remove_old(state.round)
            if self.states is not None:
                self.states.rollback(state.round)
                self.states.prune(checkpoint.saved_rounds(self.checkpoints))
            self._open_events()
            return state
        raise checkpoint.CorruptCheckpoint(
            f"no checkpoint in {self.checkpoints} is intact, with the journal up to it: restore the folder "
            "of the run, or start again in another one (--out)"
        )

    def _check_journals(self, notes: Mapping[str, Any]) -> None:
        """Compare journal and clock with their checksums, up to the round of a checkpoint."""
        self.journal.check_end(notes["journal_bytes"])
        self.clock.check_end(notes["clock_bytes"])
        check_journal(self.journal.path, read(self.clock.path, size=notes["clock_bytes"]))

    def add(self, entry: Entry, clock: Entry, state: Any, is_due: bool) -> None:
        """Add one round, or the starting model. Save it if it is due or has the best validation WER."""
        assert self.events is not None, "begin or restore first"
        may_win = "valid" in entry and state.is_result
        if may_win and (self.best is None or entry["valid"]["wer"] < self.best["wer"]):
            self.best = {"round": entry["round"], "wer": entry["valid"]["wer"]}
        self.journal.append(entry)
        self.clock.append(clock_entry(clock, self.journal))
        self.events.add(entry["round"], scalars_of(entry, clock), time.time())
        if is_due or (self.best is not None and self.best["round"] == state.round):
            self.save(state)

    def save(self, state: Any) -> None:
        self.journal.sync()
        self.clock.sync()
        notes = {"best": self.best, "journal_bytes": self.journal.size, "clock_bytes": self.clock.size}
        checkpoint.save(checkpoint.folder_of(self.checkpoints, state.round), state, notes)
        self._remove_old(state.round)
        if self.states is not None and self.states.expected:
            self.states.prune(checkpoint.saved_rounds(self.checkpoints))

    def _remove_old(self, round: int) -> None:
        """Remove checkpoints that a run saved at a round no longer needs, and damaged ones after it."""
        keep = {int(self.best["round"])} if self.best else set()
        checkpoint.prune(self.checkpoints, self.keep_last, keep, round)

    def catch_up(self, state: Any) -> None:
        """Save rounds that were not due yet, if a run stops early."""
        rounds = checkpoint.saved_rounds(self.checkpoints)
        if rounds and rounds[-1] < state.round:
            self.save(state)

    def best_model(self, state: Any) -> dict[str, Any]:
        """Return the parameters with the best validation WER and their round, else the last ones."""
        if self.best is None or self.best["round"] == state.round:
            return {"params": state.model, "submodel": state.submodel, "round": state.round}
        device = str(next(iter(state.params.values())).device)
        folder = checkpoint.folder_of(self.checkpoints, int(self.best["round"]))
        best, _ = checkpoint.load(folder, state, device)
        return {"params": best.model, "submodel": best.submodel, "round": best.round}

    def entries(self) -> list[dict[str, Any]]:
        """Return the rounds in the journal."""
        return read(self.journal.path)

    def _open_journals(self) -> None:
        self.journal = Journal(self.folder / "journal.jsonl")
        self.clock = Journal(self.folder / "clock.jsonl")

    def _open_events(self) -> None:
        """Open a new event file that has the rounds of the journal."""
        clock = read(self.clock.path)
        started = time.time() - sum(entry.get("seconds") or 0.0 for entry in clock)
        self.events = EventWriter(self.folder / "tensorboard")
        self.events.add_rounds(read(self.journal.path), clock, started)


def peak_memory_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


class EventWriter:
    """Writes the scalars of a run to a new TensorBoard file in `folder`, and removes its earlier ones.

    Writes nothing if the package tensorboard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        for path in folder.glob(f"events.out.tfevents.*{EVENTS_SUFFIX}*"):
            path.unlink()
        machine, process = socket.gethostname(), os.getpid()
        name = f"events.out.tfevents.{int(time.time()):010d}.{machine}.{process}.0{EVENTS_SUFFIX}"
        self.path = folder / name
        self._write(wall_time=time.time(), file_version="brain.Event:2")

    def add(self, step: int, scalars: Mapping[str, float], wall_time: float) -> None:
        """Write all `scalars` (tag → value) at one step."""
        values = [{"tag": tag, "simple_value": value} for tag, value in scalars.items()]
        self._write(wall_time=wall_time, step=step, summary={"value": values})

    def _write(self, **event: Any) -> None:
        try:
            # Imported when a run begins: other commands do not need it.
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            return
        make_folder(self.path.parent)
        with saving(self.path, "Finished rounds are saved. "), self.path.open("ab") as file:
            RecordWriter(file).write(Event(**event).SerializeToString())

    def add_rounds(self, journal: Sequence[Entry], clock: Sequence[Entry], started: float) -> None:
        """Write finished rounds; the time of a round is `started` plus the seconds until its end."""
        ticks = {entry["round"]: entry for entry in clock}
        now = started
        for entry in journal:
            tick = ticks.get(entry["round"], {})
            now += tick.get("seconds") or 0.0
            self.add(entry["round"], scalars_of(entry, tick), now)


def scalars_of(journal_entry: Entry, clock_entry: Entry) -> dict[str, float]:
    """Return the scalars of one round by tag.

    >>> scalars_of({"round": 1, "loss": 2.0, "valid": {"wer": 0.5}}, {"round": 1, "seconds": 3.0})
    {'train/loss': 2.0, 'valid/wer': 0.5, 'clock/seconds': 3.0}
    """
    flat = {
        "train/loss": journal_entry.get("loss"),
        "bytes/down": journal_entry.get("bytes_down"),
        "bytes/up": journal_entry.get("bytes_up"),
        "time/simulated": journal_entry.get("simulated_time"),
        "energy/simulated": journal_entry.get("simulated_joules"),
        **{f"train/{name}": value for name, value in journal_entry.get("metrics", {}).items()},
        **{f"valid/{name}": value for name, value in journal_entry.get("valid", {}).items()},
        **{f"clock/{name}": value for name, value in clock_entry.items() if name != "round"},
    }
    if "cohort" in journal_entry:
        flat["cohort/answered"] = len(journal_entry.get("clients", {}))
        flat["cohort/failed"] = len(journal_entry.get("failures", {}))
    return {tag: float(value) for tag, value in flat.items() if isinstance(value, int | float)}
