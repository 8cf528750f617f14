"""Read a Parquet or Arrow file in a process of its own, for pyarrow ends the process at some kinds of damage.

`survives(path)` runs this file as a script. The script reads all that an import reads, and more. Damage that
pyarrow reports as an exception is left to the reader, which can still use the rest of the file. The script
needs pyarrow only, so it starts fast.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

PATIENCE = 3600.0  # seconds: a shard has a gigabyte at most


def survives(path: Path) -> bool:
    """Return whether a process that reads a file comes to its end."""
    # -P: the modules beside this file are not for it.
    command = [sys.executable, "-P", __file__, str(path)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False
    )
    return done.returncode >= 0


def _parquet_parts(path: str) -> list[Callable[[], Any]]:
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    parts: list[Callable[[], Any]] = [lambda: file.schema_arrow]
    for group in range(file.num_row_groups):
        about = file.metadata.row_group(group)
        parts += [partial(_statistics, about, number) for number in range(about.num_columns)]
        parts.append(partial(file.read_row_group, group))
    return parts


def _statistics(group: Any, number: int) -> Any:
    return group.column(number).statistics


def _arrow_parts(path: str) -> list[Callable[[], Any]]:
    import pyarrow

    buffer = pyarrow.memory_map(path).read_buffer()
    try:
        reader = pyarrow.ipc.open_stream(buffer)
        return [lambda: [batch.validate(full=True) for batch in reader]]
    except pyarrow.ArrowInvalid:
        file = pyarrow.ipc.open_file(buffer)
        return [partial(_validate_batch, file, number) for number in range(file.num_record_batches)]


def _validate_batch(file: Any, number: int) -> None:
    file.get_batch(number).validate(full=True)


def main(path: str) -> None:
    try:
        parts = _parquet_parts(path) if path.endswith(".parquet") else _arrow_parts(path)
    except Exception:  # the reader meets it again, and names the file
        return
    for part in parts:
        try:
            part()
        except Exception:  # of many kinds, and the rest of the file may be whole
            continue


if __name__ == "__main__":
    main(sys.argv[1])
