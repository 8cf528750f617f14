"""TensorBoard event files of a run: its scalars by round. Needs the extra `tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.tensorboard import FileWriter

Entry = Mapping[str, Any]
SUFFIX = ".antiphon"


class EventWriter:
    """Writes the scalars of a run to a new event file in `folder`; the files of earlier starts are removed.

    Writes nothing where the package tensorboard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        for path in folder.glob(f"events.out.tfevents.*{SUFFIX}*"):
            path.unlink()
        self._writer = _file_writer(folder)

    def add(self, step: int, scalars: Mapping[str, float], wall_time: float) -> None:
        """Records all `scalars` (tag → value) at one step."""
        if self._writer is None:
            return
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._writer.add_summary(Summary(value=values), step, wall_time)
        self._writer.flush()

    def add_rounds(self, journal: Sequence[Entry], clock: Sequence[Entry], started: float) -> None:
        """Records finished rounds; the time of a round is `started` plus the seconds until its end."""
        ticks = {entry["round"]: entry for entry in clock}
        now = started
        for entry in journal:
            tick = ticks.get(entry["round"], {})
            now += tick.get("seconds") or 0.0
            self.add(entry["round"], scalars_of(entry, tick), now)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _file_writer(folder: Path) -> FileWriter | None:
    try:
        # Imported when a run begins: it takes a moment, and other commands need none.
        from torch.utils.tensorboard import FileWriter
    except ImportError:
        return None
    return FileWriter(str(folder), filename_suffix=SUFFIX)


def scalars_of(journal_entry: Entry, clock_entry: Entry) -> dict[str, float]:
    """The scalars of one round by tag.

    >>> scalars_of({"round": 1, "loss": 2.0, "valid": {"wer": 0.5}}, {"round": 1, "seconds": 3.0})
    {'train/loss': 2.0, 'valid/wer': 0.5, 'clock/seconds': 3.0}
    """
    flat = {
        "train/loss": journal_entry.get("loss"),
        "bytes/down": journal_entry.get("bytes_down"),
        "bytes/up": journal_entry.get("bytes_up"),
        **{f"train/{name}": value for name, value in journal_entry.get("metrics", {}).items()},
        **{f"valid/{name}": value for name, value in journal_entry.get("valid", {}).items()},
        **{f"clock/{name}": value for name, value in clock_entry.items() if name != "round"},
    }
    if "cohort" in journal_entry:
        flat["cohort/answered"] = len(journal_entry.get("clients", {}))
        flat["cohort/failed"] = len(journal_entry.get("failures", {}))
    return {tag: float(value) for tag, value in flat.items() if isinstance(value, int | float)}
