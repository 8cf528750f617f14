"""Options of a command are the parameters of its function: names, types, defaults and descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from antiphon.cli.options import options_of, parameter_texts


def bake(
    flour: str | Path,
    *,
    minutes: int = 30,
    settings: Sequence[str] = (),
    salted: bool = False,
    out: str | Path | None = None,
    progress: Any = None,
) -> None:
    """Bake bread.

    Args:
        flour: A bag of flour.
        minutes: The time in the oven, without `salted` bread's
            extra minute.
        settings: Changes to the oven.
        salted: Add salt.
        out: A plate. See `Bread`.
        progress: Called with the minutes.

    Example:
        bake("rye")
    """


@pytest.fixture
def call():
    """Type a command; returns what the command was called with, or the output if it stopped before."""
    values: dict[str, Any] = {}
    app = typer.Typer()

    @app.command()
    @options_of(bake, "flour")
    def bake_command(*, loaves: Annotated[int, typer.Option(min=1)] = 1, **options: Any) -> None:
        """Bake many breads."""
        values.update(options, loaves=loaves)

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
        return values if values else result.output

    return run


def test_defaults_are_those_of_the_function(call):
    assert call("rye") == {
        "flour": Path("rye"), "minutes": 30, "settings": [], "salted": False, "out": None, "loaves": 1,
    }  # fmt: skip


def test_options_have_the_types_of_the_parameters(call):
    typed = (
        "rye",
        "--minutes",
        "5",
        "--set",
        "heat=1",
        "--set",
        "fan=2",
        "--salted",
        "--out",
        "plate",
        "--loaves",
        "2",
    )
    assert call(*typed) == {
        "flour": Path("rye"), "minutes": 5, "settings": ["heat=1", "fan=2"], "salted": True,
        "out": Path("plate"), "loaves": 2,
    }  # fmt: skip


def test_help_is_the_description_with_the_names_of_options(call):
    text = " ".join(call("--help").split())
    assert "Bake many breads." in text
    assert "The time in the oven, without --salted bread's extra minute." in text
    assert "Changes to the oven. Repeatable." in text
    assert "A plate. See `Bread`." in text
    assert "progress" not in text


def test_an_option_without_a_description_is_refused():
    def undescribed(flour: str) -> None: ...

    def command(**options: Any) -> None: ...

    assert parameter_texts(undescribed) == {}
    with pytest.raises(KeyError, match="flour"):
        options_of(undescribed)(command)
