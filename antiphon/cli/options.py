"""Options and arguments that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

Settings = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change one setting by its path. Repeatable.")
]
Out = Annotated[Path, typer.Option(help="The folder for the results.")]
Resume = Annotated[bool, typer.Option(help="Continue the run in --out.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …, or auto: the GPU if there is one.")]
RunFolder = Annotated[Path, typer.Argument(help="The folder of a finished run, such as out/dga.")]
OtherCorpus = Annotated[
    Path | None, typer.Option(help="A corpus folder, if not the corpus that the run was trained on.")
]
Split = Annotated[str, typer.Option(help="The split of the corpus.")]
Models = Annotated[
    list[str],
    typer.Option(
        metavar="[NAME=]MODEL",
        help="A language model: an ARPA file, or a folder of `antiphon lm`. Repeatable.",
    ),
]
Weights = Annotated[
    list[str],
    typer.Option(
        metavar="NAME=VALUE",
        help="The fixed weight of a model or a part of the lists; score=1 if none is fixed. Repeatable.",
    ),
]
Search = Annotated[
    list[str],
    typer.Option(
        metavar="NAME[=STEP]",
        help="A weight to search for; by default the models without a weight, and words. Repeatable.",
    ),
]


def num_cores() -> int:
    """The number of processes that compute features for a command."""
    return os.cpu_count() or 1
