"""Settings with comments: nothing is lost, and every explanation comes from the dataclass itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from antiphon import config
from antiphon.experiment.settings import Experiment
from antiphon.recipes import RECIPES, recipe
from antiphon.workflows.commented_settings import class_summary, commented_yaml, explanation


@dataclass(frozen=True)
class Oven:
    """An oven for bread. `minutes` is the time of a loaf. It has a door.

    `shelf`, `light`: where the loaf is, and whether it is seen.

    >>> Oven().minutes
    30
    """

    heat: int = 200  # in degrees
    # The kind of flour:
    # rye or wheat.
    flour: str = "rye"
    minutes: int = 30
    shelf: int = 1
    light: bool = True
    plain: int = 0


@dataclass(frozen=True)
class GasOven(Oven):
    """An oven with a flame."""

    flame: int = 3  # from 1 to 6


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("heat", "in degrees"),
        ("flour", "The kind of flour: rye or wheat."),
        ("minutes", "`minutes` is the time of a loaf."),
        ("light", "`shelf`, `light`: where the loaf is, and whether it is seen."),
        ("plain", ""),
    ],
)
def test_an_explanation_is_the_comment_or_the_sentence_of_the_docstring(name: str, text: str) -> None:
    assert explanation(Oven, name) == text
    assert explanation(GasOven, name) == text  # of the class that has the field
    assert explanation(GasOven, "flame") == "from 1 to 6"


@pytest.mark.parametrize("name", RECIPES)
def test_the_file_has_all_settings_of_the_recipe(name: str, tmp_path: Path) -> None:
    text = commented_yaml(recipe(name))
    assert config.from_dict(Experiment, yaml.safe_load(text)) == recipe(name)
    (tmp_path / "experiment.yaml").write_text(text, encoding="utf-8")
    assert recipe(str(tmp_path / "experiment.yaml")) == recipe(name)


def test_no_explanation_is_there_twice_and_lines_are_short() -> None:
    lines = commented_yaml(recipe("dga")).splitlines()
    assert max(map(len, lines)) <= 110
    comments = [line.split("# ", 1)[1] for line in lines if "# " in line]
    long = [comment for comment in comments if len(comment) > 25]
    assert len(long) > 50
    assert len(set(long)) == len(long)


def settings_in(value: Any) -> Iterator[tuple[type, str, Any]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield type(value), field.name, getattr(value, field.name)
            yield from settings_in(getattr(value, field.name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from settings_in(item)


def test_every_setting_of_the_default_recipe_is_explained() -> None:
    for cls, name, value in settings_in(recipe("dga")):
        is_part = dataclasses.is_dataclass(value) and class_summary(type(value))
        assert explanation(cls, name) or is_part, f"{cls.__name__}.{name} has no comment"
