"""`antiphon prune`: make a run's model smaller, or show what would be left of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import Device, OtherCorpus, Resume, num_cores
from antiphon.workflows.prune_model import Plan

MIB = 2**20
Model = Annotated[
    str, typer.Argument(help="A finished run, such as out/dga; with --plan also the name of a preset.")
]
Sparsity = Annotated[float, typer.Option(help="The share of each matrix's rows or columns to remove.")]
PrunedOut = Annotated[Path | None, typer.Option(help="The folder for the pruned run.")]
OnlyPlan = Annotated[bool, typer.Option("--plan", help="Only print what would be left.")]
PruningSettings = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting of the pruning. Repeatable."),
]
Rounds = Annotated[int, typer.Option(min=2, help="Rounds: half of them find the mask, half fine-tune.")]


def prune_command(
    model: Model,
    sparsity: Sparsity = 0.5,
    out: PrunedOut = None,
    plan: OnlyPlan = False,
    rounds: Rounds = 40,
    settings: PruningSettings = [],
    data: OtherCorpus = None,
    resume: Resume = False,
    device: Device = "auto",
) -> None:
    """Make a run's model smaller by Federated Pruning, or with --plan print what would be left of it."""
    if plan:
        _print_plan(antiphon.plan_pruning(model, sparsity=sparsity, settings=settings))
        return
    if out is None:
        raise ValueError("name the folder of the pruned run with --out, or add --plan to see what is left")
    with terminal.Terminal() as progress:
        scores = antiphon.prune(
            model, out, sparsity=sparsity, rounds=rounds, settings=settings, data=data, resume=resume,
            device=device, feature_processes=num_cores(), progress=progress,
        )  # fmt: skip
    terminal.console.print(terminal.score_table(scores))
    terminal.console.print(f"The model is in {out / 'pruned'}   Report: {out / 'report.html'}")


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
