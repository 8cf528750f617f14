"""The command line: each command parses options, calls a function of `antiphon`, and prints the result."""

from __future__ import annotations

import os
import shlex
import sys
import traceback

import typer

from antiphon.cli import terminal
from antiphon.cli.corpus_commands import corpus_commands
from antiphon.cli.decoding_commands import nbest_command, rescore_command
from antiphon.cli.lm_commands import lm_commands
from antiphon.cli.model_commands import adapt_command, prune_command
from antiphon.cli.personalisation_commands import personalize_command
from antiphon.cli.run_commands import demo_command, recipes_command, report_command, run_command
from antiphon.cli.scoring_commands import (
    alignments_command,
    compare_command,
    evaluate_command,
    transcribe_command,
)
from antiphon.core import Stopped
from antiphon.pools.rendezvous import is_left_behind
from antiphon.pools.torch_group import PeerLost

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning of speech recognition: speech never leaves its speaker.",
)
app.command("demo")(demo_command)
app.command("recipes")(recipes_command)
app.command("run")(run_command)
app.command("evaluate")(evaluate_command)
app.command("transcribe")(transcribe_command)
app.command("report")(report_command)
app.command("compare")(compare_command)
app.command("alignments")(alignments_command)
app.command("nbest")(nbest_command)
app.command("rescore")(rescore_command)
app.command("personalize")(personalize_command)
app.command("prune")(prune_command)
app.command("adapt")(adapt_command)
app.add_typer(corpus_commands, name="corpus")
app.add_typer(lm_commands, name="lm")


def main() -> None:
    """Run the command line and exit: the entry point `antiphon`."""
    code = _exit_code()
    if is_left_behind():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _exit_code() -> int:
    try:
        app()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except Stopped as reason:
        terminal.say_stopped(str(reason), _resume_command())
        return 130 if str(reason) == "interrupted" else 3
    except PeerLost as error:
        terminal.say_lost(str(error), _resume_command())
        return 4
    except (ValueError, OSError) as error:
        terminal.say_error(str(error))
        return 2
    except Exception:
        # If other processes are lost, the interpreter's normal exit would hang: print the traceback here,
        # and let main() exit at once.
        if not is_left_behind():
            raise
        traceback.print_exc()
        return 1
    return 0


def _resume_command() -> str:
    words = [word for word in sys.argv[1:] if word != "--resume"]
    return f"antiphon {shlex.join(words)} --resume"
