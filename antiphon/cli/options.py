"""Options of commands, made from the parameters of the functions that the commands call.

An option may hold several values in one text: NAME=VALUE, or numbers with commas between them. The functions
that read them take the name of the option, for their error messages, and its text or texts.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from antiphon.records.schema import parse_number, whole

Command = Callable[..., None]

# Parameters that a command sets itself; most of them in `terminal.with_bars`.
HIDDEN = {
    "feature_processes",
    "stop",
    "ask",
    "processes",
    "num_threads",
    "progress",
    "notify",
    "listeners",
    "grid",
    "noise",
}
FLAGS = {
    "num_processes": "--workers",
    "recognisers": "--recogniser",
    "reference": "--ref",
    "settings": "--set",
    "speaking": "--speak",
    "weights": "--weight",
}
METAVARS = {
    "earlier_splits": "SPLIT",
    "normalise": "STEP",
    "only": "RUN",
    "columns": "PART=NAME",
    "settings": "KEY=VALUE",
    "speaking": "KEY=VALUE",
    "text": "STEP",
    "tune": "SPLIT",
    "tune_splits": "SPLIT",
}


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Read KEY=VALUE.

    >>> pairs("--where", ["tar=core.tar"])
    {'tar': 'core.tar'}
    """
    parts = [text.partition("=") for text in texts]
    for text, (key, equals, value) in zip(texts, parts, strict=True):
        if not (key and equals and value):
            raise ValueError(f"{option} takes KEY=VALUE, not {text!r}")
    return {key: value for key, _, value in parts}


def named_paths(option: str, texts: Sequence[str]) -> dict[str, Path]:
    """Read [NAME=]PATH; a path without a name is named by its last part.

    >>> named_paths("--lm", ["out/books.arpa", "own=lm"])
    {'books': PosixPath('out/books.arpa'), 'own': PosixPath('lm')}
    """
    named = [text if "=" in text else f"{Path(text).name.split('.')[0]}={text}" for text in texts]
    return {name: Path(path) for name, _, path in (text.partition("=") for text in named)}


def named_numbers(option: str, texts: Sequence[str], default: str = "") -> dict[str, float]:
    """Read NAME=NUMBER; if there is a default, NAME alone takes it.

    >>> named_numbers("--search", ["books", "words=0.5"], default="1")
    {'books': 1.0, 'words': 0.5}
    """
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            values[name] = parse_number(value if equals else default)
        except ValueError:
            example = f"{name or 'books'}=0.5"
            raise ValueError(f"{option} takes a name and a number, such as {example}, not {text!r}") from None
    return values


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Read numbers with commas between them.

    >>> numbers("--alpha", "0.25,0.5"), numbers("--alpha", "")
    ((0.25, 0.5), ())
    """
    try:
        return tuple(parse_number(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ValueError(f"{option} takes numbers such as 0.5 or 0.25,0.5, not {text!r}") from None


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Read whole numbers with commas between them.

    >>> whole_numbers("--rounds", "1,10")
    (1, 10)
    """
    try:
        return tuple(whole(int(part)) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} takes whole numbers such as 1 or 1,2,5, not {text!r}") from None


@dataclass(frozen=True)
class Form:
    """The form of a parameter on the command line.

    read: returns the parameter from the name of the option and its text or texts; None: they are the same.
    """

    type: Any
    metavar: str | None = None
    read: Callable[[str, Any], Any] | None = None

    @property
    def is_list(self) -> bool:
        return self.type in (list[str], list[Path])

    def default(self, value: Any) -> Any:
        """Return the default of the option from the default of the parameter."""
        if self.is_list:
            return []
        return ",".join(map(str, value)) if self.type is str and self.read is not None else value


# Type of a parameter -> its form. Types that are not listed have the same type on the command line.
FORMS: Mapping[Any, Form] = {
    str | Path: Form(Path),
    str | Path | None: Form(Path | None),
    Sequence[str]: Form(list[str], "TEXT"),
    str | Sequence[str]: Form(list[str], "TEXT"),
    Sequence[str | Path]: Form(list[Path], "PATH"),
    str | Path | Sequence[str | Path]: Form(list[Path], "PATH"),
    Sequence[int]: Form(str, "N,…", whole_numbers),
    tuple[float, ...]: Form(str, "X,…", numbers),
    Mapping[str, str]: Form(list[str], "KEY=VALUE", pairs),
    Mapping[str, str | Path]: Form(list[str], "[NAME=]PATH", named_paths),
    Mapping[str, float]: Form(list[str], "NAME=VALUE", named_numbers),
}

Search = Annotated[
    list[str],
    typer.Option(
        metavar="NAME[=STEP]",
        help="A weight to search for; by default the weights of models that are not fixed, and words. "
        "Repeatable.",
    ),
]


def options_of(function: Callable[..., Any], *arguments: str, **renamed: str) -> Callable[[Command], Command]:
    """Give a command the parameters of a function as options, with their types, defaults and descriptions.

    The parameters named in `arguments` become arguments of the command line; `renamed` are other names of
    options. A keyword parameter that the command itself declares replaces that of the function.
    """
    hints, texts = get_type_hints(function), parameter_texts(function)
    flags = {name: "--" + name.replace("_", "-") for name in texts} | FLAGS | renamed
    forms = {name: FORMS.get(hint, Form(hint)) for name, hint in hints.items()}

    def option_for(parameter: inspect.Parameter) -> inspect.Parameter:
        name, default, form = parameter.name, parameter.default, forms[parameter.name]
        text = re.sub(r"`(\w+)`", lambda match: flags.get(match[1], match[0]), texts[name])
        if name in arguments:
            info: Any = typer.Argument(help=text)
        else:
            text += " Repeatable." if form.is_list else ""
            names = [] if form.type is bool else [flags[name]]  # typer gives a bool --name and --no-name
            info = typer.Option(*names, metavar=METAVARS.get(name, form.metavar), help=text)
        if default is not inspect.Parameter.empty:
            default = form.default(default)
        annotation = Annotated[form.type, info]  # type: ignore[name-defined]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    def decorate(command: Command) -> Command:
        declared = dict(inspect.signature(command, eval_str=True).parameters)
        del declared["options"]
        options = {
            name: declared.get(name) or option_for(parameter)
            for name, parameter in inspect.signature(function).parameters.items()
            if name not in HIDDEN
        }

        @wraps(command)
        def call(**values: Any) -> None:
            for name in options.keys() - declared.keys():
                if (read := forms[name].read) is not None:
                    values[name] = read(flags[name], values[name])
            command(**values)

        setattr(call, "__signature__", inspect.Signature(list((options | declared).values())))  # noqa: B010
        call.__annotations__ = {}  # the signature has them
        return call

    return decorate


def parameter_texts(function: Callable[..., Any]) -> dict[str, str]:
    """Return the descriptions of a function's parameters: the section `Args` of its docstring."""
    _, _, section = (inspect.getdoc(function) or "").partition("Args:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section.partition("\n\n")[0], re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
