"""What a run leaves in its folder: journal, clock, TensorBoard files, checkpoints."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from antiphon.records import checkpoint
from antiphon.records.journal import Journal, read
from antiphon.records.tensorboard import EventWriter, scalars_of

Moment = tuple[int, int]  # round, call


class KeptStates(Protocol):
    """What clients keep from round to round (`antiphon.clients.states`)."""

    expected: dict[str, Moment]

    def sync(self) -> None: ...
    def wrote(self, client: str, moment: Moment) -> None: ...
    def prune(self, rounds: Iterable[int]) -> None: ...
    def rollback(self, round: int) -> None: ...


def expected_states(entries: Iterable[Mapping[str, Any]]) -> dict[str, Moment]:
    """Return, by a run's journal, which clients have a state and the round that wrote it."""
    expected: dict[str, Moment] = {}
    for entry in entries:
        for client, stats in entry.get("clients", {}).items():
            if "state_bytes" in stats:
                expected[client] = (int(entry["round"]) - 1, 0)
    return expected


class Record:
    """A run's folder. Nothing is touched before `begin` or `restore`; `close` it at the end."""

    def __init__(self, folder: Path, keep_last: int, states: KeptStates | None = None) -> None:
        self.folder, self.keep_last, self.states = folder, keep_last, states
        self.checkpoints = folder / "checkpoints"
        self.best: dict[str, float] | None = None
        self.events: EventWriter | None = None

    @property
    def has_checkpoint(self) -> bool:
        return bool(checkpoint.saved_rounds(self.checkpoints))

    def begin(self, state: Any) -> Any:
        """An empty folder for a run that starts here."""
        self._open_journals()
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        if self.states is not None:
            self.states.rollback(0)
        self.journal.truncate(0)
        self.clock.truncate(0)
        self._open_events()
        return state

    def restore(self, like: Any, skip_corrupt: bool) -> Any:
        """The newest checkpoint; the journal is cut back to what it knew."""
        self._open_journals()
        device = str(next(iter(like.params.values())).device)
        for round in reversed(checkpoint.saved_rounds(self.checkpoints)):
            folder = checkpoint.folder_of(self.checkpoints, round)
            try:
                state, notes = checkpoint.load(folder, like, device)
            except checkpoint.CorruptCheckpoint as error:
                if not skip_corrupt:
                    raise checkpoint.CorruptCheckpoint(
                        f"{error}. To go on from the one before it, add --skip-corrupt"
                    ) from error
                print(f"skipping: {error}", file=sys.stderr)
                continue
            self.best = notes["best"]
            self.journal.truncate(notes["journal_bytes"])
            self.clock.truncate(notes["clock_bytes"])
            if self.states is not None:
                self.states.rollback(state.round)
            self._open_events()
            return state
        raise checkpoint.CorruptCheckpoint(f"no checkpoint in {self.checkpoints} is whole")

    def add(self, entry: Mapping[str, Any], clock: Mapping[str, Any], state: Any, is_due: bool) -> None:
        """One round, or the starting model; saved if it is due, or the best so far by validation WER."""
        assert self.events is not None, "begin or restore first"
        may_win = "valid" in entry and state.is_result
        if may_win and (self.best is None or entry["valid"]["wer"] < self.best["wer"]):
            self.best = {"round": entry["round"], "wer": entry["valid"]["wer"]}
        self.journal.append(entry)
        self.clock.append(clock)
        self.events.add(entry["round"], scalars_of(entry, clock), time.time())
        if is_due or (self.best is not None and self.best["round"] == state.round):
            self.save(state)

    def save(self, state: Any) -> None:
        self.journal.sync()
        self.clock.sync()
        notes = {"best": self.best, "journal_bytes": self.journal.size, "clock_bytes": self.clock.size}
        checkpoint.save(checkpoint.folder_of(self.checkpoints, state.round), state, notes)
        keep = {int(self.best["round"])} if self.best else set()
        checkpoint.prune(self.checkpoints, self.keep_last, keep)
        if self.states is not None and self.states.expected:
            self.states.prune(checkpoint.saved_rounds(self.checkpoints))

    def catch_up(self, state: Any) -> None:
        """Saves rounds that were not due yet, when a run stops early."""
        if checkpoint.saved_rounds(self.checkpoints)[-1:] not in ([], [state.round]):
            self.save(state)

    def best_model(self, state: Any) -> dict[str, Any]:
        """The parameters that validated best, and their round; without validation, the last."""
        if self.best is None or self.best["round"] == state.round:
            return {"params": state.model, "submodel": state.submodel, "round": state.round}
        device = str(next(iter(state.params.values())).device)
        folder = checkpoint.folder_of(self.checkpoints, int(self.best["round"]))
        best, _ = checkpoint.load(folder, state, device)
        return {"params": best.model, "submodel": best.submodel, "round": best.round}

    def entries(self) -> list[dict[str, Any]]:
        """The rounds that the journal knows."""
        return read(self.journal.path)

    def close(self) -> None:
        if self.events is not None:
            self.events.close()

    def _open_journals(self) -> None:
        self.journal = Journal(self.folder / "journal.jsonl")
        self.clock = Journal(self.folder / "clock.jsonl")

    def _open_events(self) -> None:
        """An event file of what the journal holds already, open for what is to come."""
        clock = read(self.clock.path)
        started = time.time() - sum(entry["seconds"] for entry in clock)
        self.events = EventWriter(self.folder / "tensorboard")
        self.events.add_rounds(read(self.journal.path), clock, started)
