"""Devices from a table: a CSV file with a row for each client, such as a trace of real phones.

| column              | meaning                                                              |
| ------------------- | -------------------------------------------------------------------- |
| client              | the name of the client                                               |
| slowness            | seconds of computing for a second of audio                           |
| down, up            | megabits a second from and to the server                             |
| opens, hours        | optional, for each client or none: its window of the day             |
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from antiphon.clients.availability import Diurnal
from antiphon.clients.simulated_devices import DEVICES, Device
from antiphon.records.files import regular
from antiphon.records.reading import MAX_LINE, limited_lines
from antiphon.records.schema import parse_number

NEEDED = ("client", "slowness", "down", "up")
WINDOW = ("opens", "hours")


@DEVICES.register
@dataclass(frozen=True)
class DeviceTable:
    """The devices in a CSV file, which has a row for every client of the run."""

    path: str  # client,slowness,down,up and perhaps opens,hours

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("device_table needs the path of a CSV file")

    def __call__(self, client: str, seed: int) -> Device:
        devices = read_devices(self.path)
        if client not in devices:
            raise ValueError(f"{self.path} has no row for client {client!r}")
        return devices[client]


def read_devices(path: str) -> Mapping[str, Device]:
    """Return the devices of a table by client; ValueError names the file, the line and the column."""
    try:
        stat = os.stat(path)
        return _read(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"cannot read {path}: it is not UTF-8 text") from None
    except csv.Error as error:
        raise ValueError(f"cannot read {path}: {error}") from None


@lru_cache(maxsize=8)
def _read(path: str, modified: int, size: int) -> Mapping[str, Device]:
    with open(Path(path), encoding="utf-8-sig", newline="", opener=regular) as file:
        reader = csv.reader(limited_lines(file, path, MAX_LINE))
        names = [name.strip() for name in next(reader, [])]
        _check_header(names, f"{path}:1")
        devices: dict[str, Device] = {}
        for fields in reader:
            where = f"{path}:{reader.line_num}"
            if not fields:
                continue
            if len(fields) != len(names):
                raise ValueError(f"{where}: {len(fields)} fields, and the header has {len(names)}")
            row = {name: field.strip() for name, field in zip(names, fields, strict=True)}
            if not row["client"]:
                raise ValueError(f"{where}: column client is empty")
            if row["client"] in devices:
                raise ValueError(f"{where}: column client: {row['client']!r} has a row already")
            devices[row["client"]] = _device(row, where)
    return devices


def _check_header(names: list[str], where: str) -> None:
    if missing := [name for name in NEEDED if name not in names]:
        raise ValueError(f"{where}: there is no column {missing[0]}: the first line names {','.join(NEEDED)}")
    if unknown := [name for name in names if name not in NEEDED + WINDOW]:
        raise ValueError(f"{where}: unknown column {unknown[0]!r:.40}; known: {','.join(NEEDED + WINDOW)}")
    if len(set(names)) < len(names):
        raise ValueError(f"{where}: a column is there twice")
    if len(set(names) & set(WINDOW)) == 1:
        raise ValueError(f"{where}: the columns opens and hours belong together")


def _device(row: Mapping[str, str], where: str) -> Device:
    def number(name: str) -> float:
        try:
            return parse_number(row[name])
        except ValueError as error:
            raise ValueError(f"{where}: column {name}: {error}") from None

    for name in NEEDED[1:]:
        if number(name) <= 0:
            raise ValueError(f"{where}: column {name} must be above 0, not {row[name]}")
    window = None
    if WINDOW[0] in row and (row["opens"] or row["hours"]):
        try:
            window = Diurnal(number("opens"), number("hours"), 0.0)
        except ValueError as error:
            text = str(error)
            raise ValueError(
                text if text.startswith(where) else f"{where}: columns opens, hours: {text}"
            ) from None
    return Device(number("slowness"), number("down"), number("up"), window)
