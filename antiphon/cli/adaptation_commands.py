"""`antiphon adapt`: a model that is adapted to sessions from their text alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import Device, Resume, Settings, num_cores
from antiphon.workflows.adapt_model import Rate, SessionReport

SeedRun = Annotated[Path, typer.Argument(help="A finished run, such as out/seed, or the folder of a model.")]
Text = Annotated[
    list[Path],
    typer.Option(help="Text of sessions: a file each, a folder, or .jsonl (session, text). Repeatable."),
]
Rehearse = Annotated[Path, typer.Option(help="The corpus of real speech that the model was trained on.")]
AdaptedOut = Annotated[Path, typer.Option(help="The folder for the speech, the runs and the report.")]
Organisation = Annotated[
    list[Path], typer.Option(help="Text of the whole organisation, to adapt to centrally first. Repeatable.")
]
Train = Annotated[
    str,
    typer.Option(help="encoder, decoder, all; prediction, joint; or a pattern of parameter names."),
]
Rounds = Annotated[int, typer.Option(min=1, help="The rounds of each level.")]
Speak = Annotated[
    list[str],
    typer.Option("--speak", metavar="KEY=VALUE", help="Change how text is spoken: num_voices=8. Repeatable."),
]
SpeechOnly = Annotated[
    bool, typer.Option("--speech-only", help="Only make the corpus, to train on it elsewhere.")
]


def adapt_command(
    run: SeedRun,
    text: Text,
    rehearse: Rehearse,
    out: AdaptedOut,
    organisation: Organisation = [],
    train: Train = "all",
    rounds: Rounds = 20,
    speaking: Speak = [],
    settings: Settings = [],
    speech_only: SpeechOnly = False,
    resume: Resume = False,
    device: Device = "auto",
) -> None:
    """Adapt a model to sessions by speaking their text: centrally to the organisation's, then federated."""
    with terminal.Terminal() as progress:
        adaptation = antiphon.adapt(
            run, text, rehearse, out, organisation=organisation, train=train, rounds=rounds,
            speaking=speaking, settings=settings, speech_only=speech_only, resume=resume, device=device,
            processes=num_cores(), progress=progress, notify=terminal.say,
        )  # fmt: skip
    if not speech_only:
        terminal.console.print(_session_table(adaptation.sessions))
        terminal.console.print(terminal.score_table(adaptation.scores))
        report = adaptation.model.with_name("report.html")
        terminal.console.print(f"The model is in {adaptation.model}   Report: {report}")


def _session_table(reports: Sequence[SessionReport]) -> Table:
    table = Table(title="Sessions, before → after", box=SIMPLE_HEAD)
    table.add_column("session", no_wrap=True)
    for column in ("sentences", "words", "new", "lost", "s", "loss", "WER %"):
        table.add_column(column, justify="right", no_wrap=True)
    for report in reports:
        lost = sum(report.skipped.values()) + report.unsaid
        numbers = (report.sentences, report.words, report.new_words, lost, round(report.seconds))
        before, after = report.loss_before, report.loss_after
        losses = "–" if before is None or after is None else f"{before:.2f} → {after:.2f}"
        rates = "–"
        if report.errors_before is not None and report.errors_after is not None:
            rates = f"{_percent(report.errors_before)} → {_percent(report.errors_after)}"
        table.add_row(report.session, *(f"{number:,}" for number in numbers), losses, rates)
    return table


def _percent(errors: Rate) -> str:
    return f"{100 * errors[0] / max(1, errors[1]):.1f}"
