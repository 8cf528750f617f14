"""The command line is thin: every command is a public function, and does little more than call it."""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

import antiphon
from antiphon.cli import app, main, terminal
from antiphon.cli.lazy_commands import ENTRIES
from antiphon.data.encoders import KNOWN_ENCODERS
from antiphon.report import report

# Commands whose function has another name.
RENAMED = {
    "new": "new_project",
    "recipes": "list_recipes",
    "corpus import": "import_corpus",
    "corpus show": "describe_corpus",
    "lm ngram": "train_ngram_lm",
    "lm train": "train_transformer_lm",
    "federation create": "create_federation",
    "federation join": "join_federation",
    "federation status": "federation_status",
}


def walk(command: Any, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, f"{path} {name}".strip())
    if not hasattr(command, "commands"):
        yield path, command


COMMANDS = dict(walk(get_command(app)))
every_command = pytest.mark.parametrize("name", COMMANDS)


def function_of(name: str) -> Callable[..., Any]:
    """The public function of a command."""
    function: Callable[..., Any] = getattr(antiphon, RENAMED.get(name, name))
    return function


def definition(name: str) -> ast.FunctionDef:
    """The source of the function behind a command."""
    callback = COMMANDS[name].callback
    assert callback is not None
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(callback))))
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    return function


def test_no_command_is_missing_or_new() -> None:
    plain = (
        "demo new recipes run evaluate transcribe report compare alignments nbest rescore personalize prune"
        " adapt encoders export audit"
    )
    groups = {"corpus": "import show", "lm": "ngram train", "federation": "create join status"}
    grouped = {f"{group} {name}" for group, names in groups.items() for name in names.split()}
    assert set(COMMANDS) == {*plain.split(), *grouped}


@every_command
def test_every_command_is_a_public_function(name: str) -> None:
    public = RENAMED.get(name, name)
    assert public in dir(antiphon)
    assert public in antiphon.__all__
    assert callable(function_of(name))


@every_command
def test_every_command_calls_its_function(name: str) -> None:
    calls = [node for node in ast.walk(definition(name)) if isinstance(node, ast.Call)]
    called = {ast.unparse(call.func) for call in calls}
    called |= {ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func) == "terminal.with_bars"}
    assert f"antiphon.{RENAMED.get(name, name)}" in called


@every_command
def test_a_command_only_parses_calls_and_prints(name: str) -> None:
    function = definition(name)
    first = function.body[1]  # after the docstring
    assert function.end_lineno is not None
    assert function.end_lineno - first.lineno < 30
    assert sum(isinstance(node, ast.stmt) for node in ast.walk(function)) <= 15
    options = len(function.args.args) + len(function.args.kwonlyargs)
    assert function.end_lineno - function.lineno + 1 <= 30 + options


@every_command
def test_a_function_is_documented(name: str) -> None:
    function = function_of(name)
    if name == "report":  # the package and its function: see antiphon/report/__init__.py
        function = getattr(function, name)
    text = inspect.getdoc(function) or ""
    first, *rest = text.splitlines()
    assert first.endswith((".", ":"))
    parameters = inspect.signature(function).parameters
    if parameters:
        assert "Example:" in rest
        for parameter in parameters:
            assert f"    {parameter}: " in text, f"{parameter} is not described"


@every_command
def test_every_option_is_described_in_sentences(name: str) -> None:
    for option in COMMANDS[name].params:
        text = str(getattr(option, "help", None) or "")
        assert text[:1].isupper() or text.startswith("cpu"), (option.name, text)
        assert text.endswith("."), (option.name, text)


# Functions that end within seconds report no progress.
QUICK = {
    "audit",
    "federation create",
    "federation status",
    "encoders",
    "new",
    "recipes",
    "report",
    "compare",
    "alignments",
    "corpus show",
}


@every_command
def test_a_function_that_takes_time_reports_progress(name: str) -> None:
    assert ("progress" in inspect.signature(function_of(name)).parameters) == (name not in QUICK)


@every_command
def test_command_and_function_have_the_same_defaults(name: str) -> None:
    parameters = inspect.signature(function_of(name)).parameters
    for option in COMMANDS[name].params:
        parameter = parameters.get(str(option.name))
        if parameter is None or isinstance(parameter.default, dict | tuple):
            continue
        default = option.default() if callable(option.default) else option.default
        if default is None or isinstance(default, list | tuple):
            continue
        assert str(default) == str(parameter.default), option.name


def test_every_command_is_in_a_group_of_the_help() -> None:
    groups = {name: command.rich_help_panel for name, command in get_command(app).commands.items()}
    titles = {"Start here", "Results", "Language models and decoding", "More"}
    assert set(groups.values()) == titles
    start = {name for name, title in groups.items() if title == "Start here"}
    assert {"demo", "new", "run", "corpus"} <= start


def test_the_help_lists_what_commands_say_of_themselves() -> None:
    for name, command in get_command(app).commands.items():
        summary = " ".join(command.help.split("\n\n")[0].split())
        assert (ENTRIES[name][0].summary, ENTRIES[name][1]) == (summary, command.rich_help_panel), name


@pytest.mark.parametrize("typed", [["--help"], ["--version"]])
def test_what_needs_no_command_does_not_wait_for_torch(typed: list[str]) -> None:
    code = (
        "import sys, atexit; from antiphon.__main__ import main;"
        "atexit.register(lambda: print('imported:', {'torch', 'numpy'} & sys.modules.keys())); main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *typed], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("imported: set()\n")


def test_completion_lists_commands_without_loading_them() -> None:
    typed = {"_ANTIPHON_COMPLETE": "complete_bash", "COMP_WORDS": "antiphon re", "COMP_CWORD": "1"}
    code = (
        "import sys, atexit; from antiphon.cli import app;"
        "atexit.register(lambda: print('imported:', {'torch', 'numpy'} & sys.modules.keys()));"
        "app(prog_name='antiphon')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **typed}
    )
    assert done.stdout.split() == ["recipes", "report", "rescore", "imported:", "set()"], done.stderr


@pytest.mark.parametrize("arguments", [["-h"], ["corpus", "-h"], ["lm", "train", "-h"], ["--help"]])
def test_help_has_a_short_option_everywhere(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0
    assert "Usage:" in done.output


def test_the_version_is_printed() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"antiphon {antiphon.__version__}\n")


def test_the_shell_can_complete_commands() -> None:
    typed = {"_ANTIPHON_COMPLETE": "complete_bash", "COMP_WORDS": "antiphon re", "COMP_CWORD": "1"}
    done = CliRunner().invoke(app, [], prog_name="antiphon", env=typed)
    assert {"recipes", "report", "rescore"} <= set(done.output.split())


# Sends itself a signal when torch is imported, which is what takes the first seconds of a command.
INTERRUPTED_IMPORT = """
import os, signal, sys
number = signal.Signals[sys.argv.pop()]
class Finder:
    def find_spec(self, name, *rest):
        if name == "torch":
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Finder())
from antiphon.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("name", "code", "word"), [("SIGINT", 130, "Interrupted"), ("SIGTERM", 143, "Terminated")]
)
def test_a_signal_during_the_imports_is_one_line(name: str, code: int, word: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, "recipes", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.split("\n") == ["", f"{word}: nothing was done.", ""]


# Sends itself a signal when the command is done, while the interpreter ends.
INTERRUPTED_EXIT = """
import atexit, os, signal
atexit.register(lambda: os.kill(os.getpid(), signal.NAME))
from antiphon.__main__ import main
main()
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_after_a_command_loses_nothing_that_it_printed(name: str, code: int) -> None:
    script = INTERRUPTED_EXIT.replace("NAME", name)
    done = subprocess.run(
        [sys.executable, "-c", script, "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith("antiphon ")


def test_a_signal_while_options_are_read_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def terminate(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TyperGroup, "parse_args", terminate)
    monkeypatch.setattr(sys, "argv", ["antiphon", "recipes"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 143
    assert capsys.readouterr().err.split() == ["Terminated."]


def test_of_several_processes_only_the_first_tells_of_a_signal() -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, "recipes", "SIGTERM"]
    environment = {**os.environ, "RANK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")


def test_an_interrupt_in_a_command_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(antiphon, "list_recipes", interrupt, raising=False)
    done = CliRunner().invoke(app, ["recipes"])
    assert done.exit_code == 130
    assert done.output.strip() in ("", "Interrupted.")  # it goes to the terminal's standard error
    assert isinstance(done.exception, SystemExit)


def test_a_signal_that_python_turns_into_another_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when matplotlib is imported: Python 3.11 makes a RuntimeError from what `__set_name__` raises."""

    def make_class() -> None:
        terminate = type("Struck", (), {"__set_name__": lambda *names: os.kill(os.getpid(), signal.SIGTERM)})
        type("Owner", (), {"attribute": terminate()})

    monkeypatch.setattr(antiphon, "list_recipes", make_class, raising=False)
    monkeypatch.setattr(sys, "argv", ["antiphon", "recipes"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 143
    assert capsys.readouterr().err.split() == ["Terminated."]


def test_a_signal_while_an_error_is_told_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "say_error", lambda message: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(sys, "argv", ["antiphon", "report", "no such run"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 143
    assert capsys.readouterr().err.split() == ["Terminated."]


# Gets a signal whenever it tells of one.
INTERRUPTED_TELLING = """
import os, signal
from antiphon.cli import terminal
terminal.say_error = lambda message: os.kill(os.getpid(), signal.SIGINT)
terminal.say_interrupted = lambda reason: os.kill(os.getpid(), signal.SIGTERM)
from antiphon.__main__ import main
main()
"""


def test_the_exit_code_is_that_of_the_last_signal() -> None:
    command = [sys.executable, "-c", INTERRUPTED_TELLING, "report", "no such run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'rune'"):
        antiphon.rune  # noqa: B018


def test_importing_antiphon_loads_nothing() -> None:
    """A script that needs one name does not wait for the others."""
    code = "import sys, antiphon; dir(antiphon); print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_report_is_a_function_whether_or_not_its_package_is_imported() -> None:
    code = "import antiphon; a = antiphon.report; import antiphon.scoring.trn; print(antiphon.report is a)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
    assert callable(antiphon.report)
    parameters = list(inspect.signature(antiphon.report).parameters)
    assert parameters == list(inspect.signature(report).parameters)
    assert parameters[:2] == ["runs", "out"]


def test_a_file_that_is_not_a_known_encoder_gives_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"weights")
    done = CliRunner().invoke(app, ["encoders", str(tmp_path / "model.onnx")])
    assert (done.exit_code, "model.onnx: not a known encoder (SHA-256 " in done.output) == (1, True)
    known = replace(KNOWN_ENCODERS[-1], name="mine", sha256=hashlib.sha256(b"weights").hexdigest())
    monkeypatch.setattr("antiphon.data.encoders.KNOWN_ENCODERS", (*KNOWN_ENCODERS, known))
    done = CliRunner().invoke(app, ["encoders", str(tmp_path / "model.onnx")])
    assert (done.exit_code, "model.onnx: mine\n" in done.output) == (0, True)
