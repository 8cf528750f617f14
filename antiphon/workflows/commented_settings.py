"""The settings of an experiment as YAML, each explained once by the comments and docs of its dataclass."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import textwrap
import tokenize
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from antiphon import config
from antiphon.registry import Choices

WIDTH = 100


def commented_yaml(settings: Any) -> str:
    """Return a configuration as YAML with comments; `config.from_dict` reads it again."""
    return "\n".join(_Writer().fields(settings, config.to_dict(settings), 0)) + "\n"


def explanation(cls: type, name: str) -> str:
    """Return what the source says about a field: its comment, else the sentences of the docstring about it.

    >>> from antiphon.engine import Rounds
    >>> explanation(Rounds, "cohort")
    'clients drawn in a round'
    """
    owners = [base for base in cls.__mro__ if name in inspect.get_annotations(base)]
    comment = _comments(owners[0]).get(name, "") if owners else ""
    if comment:
        return comment
    for base in cls.__mro__[:-1]:
        text = " ".join((inspect.getdoc(base) or "").partition(">>>")[0].split())
        sentences = re.split(r"(?<=\.) (?=[A-Z`])", text)
        if about := [sentence for sentence in sentences if f"`{name}`" in sentence]:
            return " ".join(about)
    return ""


@cache
def _comments(cls: type) -> dict[str, str]:
    """Return the comment of each field of a class: at the end of its line, or on the lines above it."""
    source = textwrap.dedent(inspect.getsource(cls))
    comments, alone = {}, set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("# ")
            if not token.line[: token.start[1]].strip():
                alone.add(token.start[0])
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            first = node.lineno
            while first - 1 in alone:
                first -= 1
            lines = [*range(first, node.lineno), *range(node.lineno, (node.end_lineno or 0) + 1)]
            texts[node.target.id] = " ".join(comments[line] for line in lines if line in comments)
    return texts


def class_summary(cls: type) -> str:
    """Return the first line of a class's docstring."""
    return (inspect.getdoc(cls) or "").partition("\n")[0]


class _Writer:
    """Writes nested settings; remembers what it has explained."""

    def __init__(self) -> None:
        self.explained: set[str] = set()

    def fields(self, value: Any, tree: Mapping[str, Any], depth: int) -> list[str]:
        lines: list[str] = []
        for field in dataclasses.fields(value):
            if field.name in tree:
                texts = self._once(explanation(type(value), field.name))
                part = getattr(value, field.name)
                if dataclasses.is_dataclass(part) and not isinstance(part, type):
                    texts += self._once(class_summary(type(part)))
                texts += self._choices(type(value), field.name)
                lines += self._entry(field.name, part, tree[field.name], depth, texts)
        return lines

    def _entry(self, key: str, value: Any, tree: Any, depth: int, texts: list[str]) -> list[str]:
        pad = "  " * depth
        if isinstance(value, dict) and value and all(map(dataclasses.is_dataclass, value.values())):
            texts += self._once(class_summary(type(next(iter(value.values())))))
            entries = (self._entry(name, value[name], tree[name], depth + 1, []) for name in value)
            return [*_comment(texts, pad), f"{pad}{key}:", *(line for entry in entries for line in entry)]
        if not dataclasses.is_dataclass(value):
            return _line(f"{pad}{key}: {_flow(tree)}", texts, pad)
        names = {field.name for field in dataclasses.fields(value) if field.init}
        name = "" if tree.keys() == names else next(iter(tree))
        inner = tree[name] if name else tree
        if not inner:
            return _line(f"{pad}{key}: {name or '{}'}", texts, pad)
        lines = [*_comment(texts, pad), f"{pad}{key}:"]
        if name:
            return [*lines, f"{pad}  {name}:", *self.fields(value, inner, depth + 2)]
        return lines + self.fields(value, inner, depth + 1)

    def _once(self, text: str) -> list[str]:
        """Return the text if it was not written before."""
        is_new = not any(text in earlier for earlier in self.explained)
        self.explained.add(text)
        return [text] if is_new and text else []

    def _choices(self, cls: type, name: str) -> list[str]:
        choices = Choices(typing.get_type_hints(cls)[name])
        if not choices.are_named:
            return []
        return self._once(f"Choices of {name}: {', '.join(choices)}.")


def _flow(tree: Any) -> str:
    return yaml.safe_dump(tree, default_flow_style=True, width=10_000).removesuffix("...\n").strip()


def _line(line: str, texts: list[str], pad: str) -> list[str]:
    """Return a line with its comment behind it, or above it if it is long."""
    if len(texts) == 1 and len(line) + len(texts[0]) + 4 <= WIDTH:
        return [f"{line}  # {texts[0]}"]
    return [*_comment(texts, pad), line]


def _comment(texts: list[str], pad: str) -> list[str]:
    return [f"{pad}# {line}" for text in texts for line in textwrap.wrap(text, WIDTH - len(pad) - 2)]
