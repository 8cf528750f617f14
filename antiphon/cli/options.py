"""Options of commands: those of a function of `antiphon`, and those that several commands share."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

Command = Callable[..., None]

# Parameters that a command sets itself.
HIDDEN = {"feature_processes", "processes", "num_threads", "progress", "notify", "grid", "noise"}
FLAGS = {"num_processes": "--workers", "reference": "--ref", "settings": "--set", "speaking": "--speak"}
METAVARS = {
    "heldout": "FILE",
    "normalise": "STEP",
    "only": "RUN",
    "settings": "KEY=VALUE",
    "speaking": "KEY=VALUE",
    "tune": "SPLIT",
}
# Type of a parameter -> type of its option. Types that are not listed stay.
TYPES: Mapping[Any, Any] = {
    str | Path: Path,
    str | Path | None: Path | None,
    Sequence[str]: list[str],
    Sequence[str | Path]: list[Path],
    str | Path | Sequence[str | Path]: list[Path],
}

Resume = Annotated[bool, typer.Option(help="Continue the run in --out.")]
Models = Annotated[
    list[str],
    typer.Option(
        metavar="[NAME=]MODEL",
        help="A language model: an ARPA file, or a folder made by `antiphon lm`. Repeatable.",
    ),
]
Weights = Annotated[
    list[str],
    typer.Option(
        "--weight",
        metavar="NAME=VALUE",
        help="A fixed weight of a model or of a part of the lists; score=1 if none is fixed. Repeatable.",
    ),
]
Search = Annotated[
    list[str],
    typer.Option(
        metavar="NAME[=STEP]",
        help="A weight to search for; by default the weights of models that are not fixed, and words. "
        "Repeatable.",
    ),
]


def num_cores() -> int:
    """The number of processes that compute features for a command."""
    return os.cpu_count() or 1


def options_of(function: Callable[..., Any], *arguments: str) -> Callable[[Command], Command]:
    """Give a command the parameters of a function as options, with their types, defaults and descriptions.

    The parameters named in `arguments` become arguments of the command line. A keyword parameter that the
    command itself declares replaces that of the function.
    """
    hints, texts = get_type_hints(function), parameter_texts(function)
    flags = {name: FLAGS.get(name, "--" + name.replace("_", "-")) for name in texts}

    def option_for(parameter: inspect.Parameter) -> inspect.Parameter:
        name, default = parameter.name, parameter.default
        kind = TYPES.get(hints[name], hints[name])
        is_list = kind in (list[str], list[Path])
        text = re.sub(r"`(\w+)`", lambda match: flags.get(match[1], match[0]), texts[name])
        if name in arguments:
            info: Any = typer.Argument(help=text)
        else:
            text += " Repeatable." if is_list else ""
            names = [] if kind is bool else [flags[name]]  # typer gives a bool --name and --no-name
            info = typer.Option(*names, metavar=METAVARS.get(name), help=text)
        if default is not inspect.Parameter.empty:
            default = list(default) if is_list else Path(default) if kind is Path else default
        annotation = Annotated[kind, info]  # type: ignore[valid-type]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    def decorate(command: Command) -> Command:
        own = dict(inspect.signature(command, eval_str=True).parameters)
        del own["options"]
        options = {
            name: own.get(name) or option_for(parameter)
            for name, parameter in inspect.signature(function).parameters.items()
            if name not in HIDDEN
        }

        @wraps(command)
        def call(**values: Any) -> None:
            command(**values)

        setattr(call, "__signature__", inspect.Signature(list((own | options).values())))  # noqa: B010
        call.__annotations__ = {}  # the signature has them
        return call

    return decorate


def parameter_texts(function: Callable[..., Any]) -> dict[str, str]:
    """Return the descriptions of a function's parameters: the section `Args` of its docstring."""
    _, _, section = (inspect.getdoc(function) or "").partition("Args:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section.partition("\n\n")[0], re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
