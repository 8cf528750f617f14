"""The command line: each command parses options, calls a function of `antiphon`, and prints the result."""

from __future__ import annotations

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
from antiphon.cli.corpus_commands import corpus_commands, encoders_command
from antiphon.cli.decoding_commands import lm_commands, nbest_command, rescore_command
from antiphon.cli.federation_commands import federation_commands
from antiphon.cli.model_commands import adapt_command, export_command, prune_command
from antiphon.cli.personalisation_commands import personalize_command
from antiphon.cli.privacy_commands import audit_command
from antiphon.cli.run_commands import (
    demo_command,
    new_command,
    recipes_command,
    report_command,
    run_command,
)
from antiphon.cli.scoring_commands import (
    alignments_command,
    compare_command,
    evaluate_command,
    transcribe_command,
)
from antiphon.core import Stopped
from antiphon.pools.rendezvous import is_left_behind
from antiphon.pools.signals import exit_code, interrupting, interruption_in, reason_of
from antiphon.pools.spawning import end_with_starter
from antiphon.pools.torch_group import PeerLost

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


# The groups of commands in --help.
COMMANDS: dict[str, list[Any]] = {
    "Start here": [demo_command, new_command, recipes_command, run_command],
    "Results": [report_command, compare_command, evaluate_command, transcribe_command, alignments_command],
    "Language models and decoding": [nbest_command, rescore_command, personalize_command],
    "More": [adapt_command, prune_command, export_command, encoders_command, audit_command],
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(command.__name__.removesuffix("_command"), rich_help_panel=panel)(command)
app.add_typer(corpus_commands, name="corpus", rich_help_panel="Start here")
app.add_typer(federation_commands, name="federation", rich_help_panel="More")
app.add_typer(lm_commands, name="lm", rich_help_panel="Language models and decoding")


def main() -> None:
    """Run the command line and exit: the entry point `antiphon`."""
    with interrupting():
        try:
            code = _exit_code()
        except KeyboardInterrupt as error:  # it came while the command told how it had ended
            code = _interrupted(error)
    if is_left_behind():
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
    except Stopped as reason:
        terminal.say_stopped(str(reason), _resume_command())
        return exit_code(str(reason)) or 3
    except PeerLost as error:
        terminal.say_lost(str(error), _resume_command())
        return 4
    except (ValueError, OSError) as error:
        terminal.say_error(str(error))
        return 2
    except Exception as error:
        interruption = interruption_in(error)
        if interruption is not None:
            return _interrupted(interruption)
        # If other processes are lost, the interpreter's normal exit would hang: print the traceback here,
        # and let main() exit at once.
        if not is_left_behind():
            raise
        traceback.print_exc()
        return 1
    return 0


def _interrupted(error: KeyboardInterrupt) -> int:
    """Print the signal that has ended a command; return the exit code."""
    reason = reason_of(error)
    terminal.say_interrupted(reason)
    return exit_code(reason) or 1


def _resume_command() -> str:
    words = [word for word in sys.argv[1:] if word != "--resume"]
    return f"antiphon {shlex.join(words)} --resume"
