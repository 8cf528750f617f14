"""`antiphon adapt`, `prune` and `export`: new models and files from the model of a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import options_of
from antiphon.exporting.export_folder import Exported
from antiphon.report.formatting import percent, size
from antiphon.workflows.adapt_model import Rate, SessionReport
from antiphon.workflows.prune_model import Plan

MIB = 2**20
Model = Annotated[
    str, typer.Argument(help="A finished run, such as out/dga; with --plan also the name of a preset.")
]
PrunedOut = Annotated[
    Path | None, typer.Option(help="The folder for the pruned run and its report; not needed with --plan.")
]
OnlyPlan = Annotated[bool, typer.Option("--plan", help="Print what would be left, and change nothing.")]


SessionTexts = Annotated[
    list[Path],
    typer.Option(
        metavar="PATH",
        help="Texts of sessions: a file for each session, folders of such files, or .jsonl files with the "
        "fields session and text. Repeatable. Not with --federation: sites have the sessions.",
    ),
]
Rehearse = Annotated[
    Path | None,
    typer.Option(
        help="The corpus of real speech that the model was trained on. A site has none: leave it out with "
        "--speech-only."
    ),
]


@options_of(antiphon.adapt, "run")
def adapt_command(*, text: SessionTexts = [], rehearse: Rehearse = None, **options: Any) -> None:
    """Adapt a model to the text of sessions: make speech from the text, and train on it."""
    adaptation = terminal.with_bars(antiphon.adapt, text=text, rehearse=rehearse, **options)
    if not options["speech_only"]:
        if adaptation.sessions:
            terminal.console.print(_session_table(adaptation.sessions))
        terminal.console.print(terminal.score_table(adaptation.scores))
        terminal.say_results(adaptation.model, adaptation.model.parent)


@options_of(antiphon.prune)
def prune_command(*, run: Model, out: PrunedOut = None, plan: OnlyPlan = False, **options: Any) -> None:
    """Make a run's model smaller by Federated Pruning, or print what would be left of it (--plan)."""
    if plan:
        chosen = {name: options[name] for name in ("sparsity", "settings")}
        _print_plan(antiphon.plan_pruning(run, **chosen))
        return
    if out is None:
        raise ValueError("name the folder of the pruned run with --out, or add --plan to see what is left")
    scores = terminal.with_bars(antiphon.prune, run=run, out=out, **options)
    terminal.console.print(terminal.score_table(scores))
    terminal.say_results(out / "pruned", out)


@options_of(antiphon.export, "run", "out")
def export_command(**options: Any) -> None:
    """Write a run's model as ONNX files that recognise speech without antiphon."""
    exported = terminal.with_bars(antiphon.export, **options)
    files = ", ".join(f"{name} ({size(num_bytes)})" for name, num_bytes in exported.sizes.items())
    terminal.say(f"wrote {files} to {exported.folder}")
    if exported.comparison:
        terminal.console.print(_comparison_table(exported))


def _comparison_table(exported: Exported) -> Table:
    title = f"{exported.num_utterances:,} utterances, by greedy search"
    table = terminal.number_table(title, "", "WER %", "change", "same text")
    first = exported.comparison[0].errors.rate
    for row in exported.comparison:
        change = (
            f"{100 * (row.errors.rate - first):+.2f}".replace("-", "−") if row.errors.rate != first else "0"
        )
        table.add_row(row.name, percent(row.errors.rate), change, f"{row.num_same:,}")
    return table


def _session_table(reports: Sequence[SessionReport]) -> Table:
    columns = ("sentences", "words", "new", "lost", "s", "loss", "WER %")
    table = terminal.number_table("Sessions, before → after", "session", *columns)
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


def _print_plan(plan: Plan) -> None:
    rows = [("weight", "outputs × inputs", "kept", "removed", "bytes", "kept bytes")]
    for weight in plan.weights:
        removed = f"{100 * (1 - weight.num_kept / weight.num_weights):.1f} %"
        shapes = _shape(weight.shape), " + ".join(map(_shape, weight.kept))
        sizes = f"{4 * weight.num_weights:,}", f"{4 * weight.num_kept:,}"
        rows.append((weight.name.removesuffix(".weight"), *shapes, removed, *sizes))
    # Plain lines: a table that fits the terminal would cut the names of layers short.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        typer.echo("  ".join([name.ljust(widths[0]), *padded]))
    total, kept = sum(w.num_weights for w in plan.weights), sum(w.num_kept for w in plan.weights)
    typer.echo(f"prunable weights {total:,}, kept {kept:,}: zero-parameter ratio {plan.zero_ratio:.3f}")
    before, after = plan.bytes_before, plan.bytes_after
    typer.echo(
        f"whole model {before / MIB:,.1f} MiB, kept {after / MIB:,.1f} MiB ({after / before:.3f} of it)"
    )


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
