"""TensorBoard event files without TensorBoard: scalars only.

A file is a row of TFRecords (length, its masked CRC-32C, data, its masked CRC-32C); the data of each
is an `Event` protobuf: wall_time (field 1, double), step (2, varint), file_version (3, string) or
summary (5), which repeats `Value` (1) with tag (1, string) and simple_value (2, float).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

Entry = Mapping[str, Any]


class EventWriter:
    """Writes scalars to a new event file in `folder`; times come from the caller.

    TensorBoard reads all files of a folder as one run, so a resumed run simply opens another writer.
    """

    def __init__(self, folder: Path, wall_time: float = 0.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in order of name and never goes back: number them.
        number = max((int(path.suffix[1:]) for path in _event_files(folder)), default=-1) + 1
        self.path = folder / f"events.out.tfevents.{int(wall_time):010d}.antiphon.{number:04d}"
        self._file = self.path.open("xb")
        self._write(_double(1, wall_time) + _bytes(3, b"brain.Event:2"))

    def add(self, step: int, scalars: Mapping[str, float], wall_time: float) -> None:
        """Records all `scalars` (tag → value) at one step."""
        values = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, v)) for tag, v in scalars.items())
        self._write(_double(1, wall_time) + _varint(2 << 3) + _varint(step) + _bytes(5, values))

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked_crc(length) + event + _masked_crc(event))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_scalars(
    folder: Path, journal_entries: Sequence[Entry], clock_entries: Sequence[Entry], started: float = 0.0
) -> None:
    """Writes a whole run afresh; the time of a round is `started` plus the seconds until its end."""
    for path in _event_files(folder):
        path.unlink()
    clock = {entry["round"]: entry for entry in clock_entries}
    now = started
    with EventWriter(folder, started) as writer:
        for entry in journal_entries:
            tick = clock.get(entry["round"], {})
            now += tick.get("seconds") or 0.0
            writer.add(entry["round"], scalars_of(entry, tick), now)


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


def _event_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("events.out.tfevents.*.antiphon.[0-9][0-9][0-9][0-9]"))


def _varint(value: int) -> bytes:
    assert value >= 0
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli).

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
