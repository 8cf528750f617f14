"""`antiphon prune`: what would be removed from a model, and a run that removes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from antiphon import screen

MIB = 2**20


def prune_command(
    model: Annotated[
        str, typer.Argument(help="A finished run, such as out/dga; with --plan also a preset's name.")
    ],
    sparsity: Annotated[float, typer.Option(help="Share of each matrix's rows or columns to remove.")] = 0.5,
    out: Annotated[Path | None, typer.Option(help="Folder for the pruned run.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only print what would be left.")] = False,
    rounds: Annotated[int, typer.Option(min=2, help="Half of them find the mask, half fine-tune.")] = 40,
    settings: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change one setting of the pruning.")
    ] = [],
    data: Annotated[Path | None, typer.Option(help="Another corpus than the run's own.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on where the run in --out stopped.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: the GPU if there is one.")] = "auto",
) -> None:
    """Make a run's model smaller by Federated Pruning, or with --plan say what would be left of it."""
    if plan:
        _print_plan(model, sparsity, settings)
        return
    if out is None:
        raise ValueError("say where the pruned run goes: --out FOLDER; or add --plan to see what it would do")
    from antiphon.recipes.launch import run_experiment
    from antiphon.recipes.pruning import pruned_experiment

    experiment, own_data = pruned_experiment(Path(model), sparsity, rounds, settings)
    with screen.Terminal() as terminal:
        scores = run_experiment(
            experiment, data or own_data, out, resume, False, device, os.cpu_count() or 1, terminal
        )
    screen.console.print(screen.score_table(scores))
    screen.console.print(f"The model is in {out / 'pruned'}   Report: {out / 'report.html'}")


def _print_plan(model: str, sparsity: float, settings: list[str]) -> None:
    from antiphon.recipes.pruning import plan

    found = plan(model, sparsity, settings)
    rows = [("weight", "outputs × inputs", "kept", "removed", "bytes", "kept bytes")]
    for weight in found.weights:
        removed = f"{100 * (1 - weight.num_kept / weight.num_weights):.1f} %"
        shapes = _shape(weight.shape), " + ".join(map(_shape, weight.kept))
        sizes = f"{4 * weight.num_weights:,}", f"{4 * weight.num_kept:,}"
        rows.append((weight.name.removesuffix(".weight"), *shapes, removed, *sizes))
    # Plain lines: a table that fits the terminal would cut the names of layers short.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        typer.echo("  ".join([name.ljust(widths[0]), *padded]))
    total, kept = sum(w.num_weights for w in found.weights), sum(w.num_kept for w in found.weights)
    typer.echo(f"prunable weights {total:,}, kept {kept:,}: zero-parameter ratio {found.zero_ratio:.3f}")
    before, after = found.bytes_before, found.bytes_after
    typer.echo(
        f"whole model {before / MIB:,.1f} MiB, kept {after / MIB:,.1f} MiB ({after / before:.3f} of it)"
    )


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
