"""The command line: each command parses options, calls a function of `antiphon`, and prints the result."""

from __future__ import annotations

import copy
import os
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import antiphon
from antiphon.cli import terminal
from antiphon.cli.lazy_commands import LazyCommands, listed
from antiphon.pools.lifeline import end_with_starter
from antiphon.pools.signals import exit_code, interrupting, interruption_in, reason_of

__all__ = ["app", "main"]


@contextmanager
def _telling_of_signals() -> Iterator[None]:
    """Print one line if a signal ends a command; typer would exit without a word."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise typer.Exit(_interrupted(error)) from None


class _Commands(TyperGroup):
    """The commands. A signal may come while one runs, or while its options are read."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": LazyCommands()})

    def format_help(self, ctx: Any, formatter: Any) -> None:
        TyperGroup.format_help(self._listing(), ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        ctx.command = self._listing()
        return super().shell_complete(ctx, incomplete)

    def _listing(self) -> _Commands:
        """Return the same commands to be listed, not loaded."""
        listing = copy.copy(self)
        listing.commands = listed()
        return listing

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _telling_of_signals():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _telling_of_signals():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Federated learning of speech recognition: speech never leaves its speaker.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        terminal.say(f"antiphon {antiphon.__version__}")
        raise typer.Exit()


Version = Annotated[
    bool,
    typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
]


@app.callback(help=app.info.help)
def _options(version: Version = False) -> None:
    """Declare the options of `antiphon` itself."""


def main() -> None:
    """Run the command line and exit: the entry point `antiphon`."""
    with interrupting():
        try:
            code = _exit_code()
        except KeyboardInterrupt as error:  # it came while the command told how it had ended
            code = _interrupted(error)
    if _is_left_behind():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _exit_code() -> int:
    try:
        end_with_starter()
        app()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except KeyboardInterrupt as error:
        return _interrupted(error)
    except Exception as error:
        return _code_of(error)
    return 0


def _code_of(error: Exception) -> int:
    """Print the error that ended a command; return the exit code. An error that nobody expects is raised."""
    from antiphon.core import Stopped
    from antiphon.pools.torch_group import PeerLost

    if isinstance(error, Stopped):
        terminal.say_stopped(str(error), _resume_command())
        return exit_code(str(error)) or 3
    if isinstance(error, PeerLost):
        terminal.say_lost(str(error), _resume_command())
        return 4
    if isinstance(error, ValueError | OSError):
        terminal.say_error(str(error))
        return 2
    interruption = interruption_in(error)
    if interruption is not None:
        return _interrupted(interruption)
    # If other processes are lost, the interpreter's normal exit would hang: print the traceback here, and let
    # main() exit at once.
    if not _is_left_behind():
        raise error
    traceback.print_exc()
    return 1


def _is_left_behind() -> bool:
    """Return whether this process waits for others; only a command that has joined some can."""
    rendezvous = sys.modules.get("antiphon.pools.rendezvous")
    return rendezvous is not None and rendezvous.is_left_behind()


def _interrupted(error: KeyboardInterrupt) -> int:
    """Print the signal that has ended a command; return the exit code."""
    reason = reason_of(error)
    terminal.say_interrupted(reason)
    return exit_code(reason) or 1


def _resume_command() -> str:
    words = [word for word in sys.argv[1:] if word != "--resume"]
    return f"antiphon {shlex.join(words)} --resume"
