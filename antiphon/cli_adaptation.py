"""`antiphon adapt`: a model that knows what sessions are about, from their text alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from antiphon import config, screen

if TYPE_CHECKING:
    from antiphon.data.session_texts import SessionText
    from antiphon.data.spoken_corpus import SpokenCorpus
    from antiphon.recipes.session_report import Rate, SessionReport


def adapt_command(
    run: Annotated[Path, typer.Argument(help="A finished run, such as out/seed, or the folder of a model.")],
    text: Annotated[
        list[Path],
        typer.Option(help="Text of a session: a file each, a folder of them, or .jsonl (session, text)."),
    ],
    rehearse: Annotated[Path, typer.Option(help="The corpus of real speech that the model was trained on.")],
    out: Annotated[Path, typer.Option(help="Folder for the speech, the runs and the report.")],
    organisation: Annotated[
        list[Path], typer.Option(help="Text of the whole organisation, for adaptation in one place first.")
    ] = [],
    train: Annotated[
        str, typer.Option(help="encoder, decoder, all; prediction, joint; or a pattern of parameter names.")
    ] = "all",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each level.")] = 20,
    speaking: Annotated[
        list[str],
        typer.Option("--speak", metavar="KEY=VALUE", help="Change how text is spoken: num_voices=8."),
    ] = [],
    settings: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change one setting of the runs.")
    ] = [],
    speech_only: Annotated[
        bool, typer.Option("--speech-only", help="Only make the corpus, to train on it elsewhere.")
    ] = False,
    resume: Annotated[bool, typer.Option(help="Go on where the runs in --out stopped.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: the GPU if there is one.")] = "auto",
) -> None:
    """Adapt a model to sessions by speaking their text: centrally to the organisation's, then federated."""
    from antiphon.data.corpus import Corpus
    from antiphon.recipes import adaptation
    from antiphon.recipes.folder import check_folder
    from antiphon.recipes.launch import run_experiment
    from antiphon.recipes.session_report import report_sessions

    num_cores, runs = os.cpu_count() or 1, out / "runs"
    seed, corpus = adaptation.Seed.open(run), Corpus.open(rehearse)
    how = config.override(adaptation.Speaking(), speaking)
    experiment = adaptation.adapted_experiment(seed, bool(organisation), train, rounds, settings)
    check_folder(runs, experiment, resume)
    texts = adaptation.read_texts(seed, text, organisation, corpus, how)
    _print_skipped([*texts.sessions, *texts.organisation])
    with screen.bar("synthesis") as progress:
        spoken, real = adaptation.make_corpus(out / "corpus", texts, corpus, how, num_cores, progress)
    _print_spoken(spoken)
    with screen.Terminal() as terminal:
        store = adaptation.compute_features(seed, spoken, real, num_cores, terminal.features)
        if speech_only:
            return
        scores = run_experiment(
            experiment, spoken.corpus.path, runs, resume, False, device, num_cores, terminal
        )
    reports = report_sessions(texts, spoken, store, seed.folder, runs, list(experiment.runs), how)
    screen.console.print(_session_table(reports))
    screen.console.print(screen.score_table(scores))
    screen.console.print(f"The model is in {runs / 'adapted'}   Report: {runs / 'report.html'}")


def _print_skipped(texts: Sequence[SessionText]) -> None:
    """Every reason with how many sentences it cost, and sessions that have nothing left."""
    for text in texts:
        total = len(text.sentences) + len(text.skipped)
        for kind, count in Counter(one.kind for one in text.skipped).items():
            line = f"{text.name}: {count:,} of {total:,} sentences skipped, {kind}"
            screen.console.print(line, highlight=False)
        if not text.sentences:
            screen.console.print(f"[yellow]{text.name}: nothing left to say, the session is left out[/]")


def _print_spoken(spoken: SpokenCorpus) -> None:
    if not spoken.said:
        screen.console.print("all of it was said before")
        return
    times = spoken.seconds / spoken.wall_seconds
    took = f"{spoken.seconds / 60:.1f} min of speech in {spoken.wall_seconds:.0f} s"
    unsaid = f"; {len(spoken.unsaid):,} that no voice can say" if spoken.unsaid else ""
    screen.console.print(f"{took}, {times:.0f} times real time{unsaid}", highlight=False)


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
