"""`antiphon audit`: the claim of a private run, beside what was measured."""

from __future__ import annotations

from typing import Any

import typer

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import options_of
from antiphon.cli.terminal import say


@options_of(antiphon.audit, "run")
def audit_command(**options: Any) -> None:
    """Attack a private run by its canaries, and compare what is found with the privacy that it claims."""
    found = antiphon.audit(**options)
    title = f"{found.canaries} canaries, {found.rounds} rounds, delta {found.delta:g}"
    table = terminal.number_table(title, "epsilon", "value")
    for meaning, epsilon in found.rows():
        table.add_row(meaning, f"{epsilon:.2f}")
    terminal.console.print(table)
    say(found.verdict)
    if found.is_refuted:
        raise typer.Exit(1)
