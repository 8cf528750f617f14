"""An importer: a folder of WAV files with `list.tsv`, whose columns are id, speaker, split and text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from antiphon.data.importing.candidates import Candidate, ImportOptions, Skipped, find_audio


class TabSeparated:
    looks_for = "a folder with list.tsv"

    def recognises(self, source: Path) -> bool:
        return (source / "list.tsv").is_file()

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        for number, line in enumerate((source / "list.tsv").read_text().splitlines(), start=1):
            id, speaker, split, text = line.split("\t")
            yield Candidate(
                id=id,
                speaker=speaker,
                session="-",
                split=split,
                text=text,
                audio=find_audio(f"{id}.wav", source, options),
                where=f"list.tsv:{number}",
            )
