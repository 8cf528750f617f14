"""`antiphon federation create`, `join` and `status`: clients on other machines."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import options_of

federation_commands = typer.Typer(
    no_args_is_help=True,
    help="Train with clients on other machines: make kits, join as a site, see which sites are connected.",
)

Sites = Annotated[str, typer.Option(metavar="NAME,…", help="The names of the sites.")]


@federation_commands.command("create")
@options_of(antiphon.create_federation)
def create_command(*, sites: Sites, **options: Any) -> None:
    """Make the kits of a federation: certificates, private keys and signed settings."""
    names = [name for name in sites.split(",") if name]
    folders = antiphon.create_federation(sites=names, **options)
    status = antiphon.federation_status(folders[0], ask=False)
    for folder in folders:
        terminal.say(f"{folder}: {'for the server' if folder == folders[0] else 'send it to the site'}")
    terminal.say(f"{options['out'] / 'authority'}: keep it offline")
    terminal.say(f"fingerprint {status['fingerprint'][:32]}; certificates expire on {status['expires']}")


@federation_commands.command("join")
@options_of(antiphon.join_federation, "kit")
def join_command(**options: Any) -> None:
    """Join a federation with speech or N-best lists, and do the work that its server sends, until Ctrl-C."""
    terminal.with_bars(antiphon.join_federation, **options)


@federation_commands.command("status")
@options_of(antiphon.federation_status, "kit")
def status_command(**options: Any) -> None:
    """Look at a federation from its server: which sites are connected."""
    status = antiphon.federation_status(**options)
    state = "a run is in progress" if status["running"] else "no run is in progress"
    terminal.say(f"{status['server']}: {state}; certificates expire on {status['expires']}")
    for site, is_connected in status["sites"].items():
        terminal.say(f"  {site}: {'connected' if is_connected else 'not connected'}")
