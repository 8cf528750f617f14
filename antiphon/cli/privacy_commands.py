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
    """Look for the canaries of a private run, and compare what is found with its claim."""
    found = antiphon.audit(**options)
    each = f"{50 * (1 + found.confidence):g} %"
    table = terminal.number_table(
        f"{found.canaries} canaries, {found.rounds} rounds, delta {found.delta:g}", "epsilon", "value"
    )
    table.add_row("claimed", f"{found.claimed:.2f}")
    table.add_row(f"at least, from one run ({each})", f"{found.at_least:.2f}")
    if found.cosine is not None:
        cosine = found.cosine
        table.add_row("estimated, by cosines", f"{cosine.estimate:.2f}")
        table.add_row(f"at least, by cosines ({each})", f"{cosine.low:.2f}")
        table.add_row(f"at most, by cosines ({each})", f"{cosine.high:.2f}")
    terminal.console.print(table)
    say(found.verdict)
    if found.is_refuted:
        raise typer.Exit(1)
