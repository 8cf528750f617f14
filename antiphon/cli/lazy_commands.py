"""The commands of `antiphon`, each loaded when it is used.

To load all of them takes seconds, because they need torch. `antiphon --help` and the shell's completion need
names and summaries only.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_group

from antiphon.pools.signals import exit_at_once, on_signals


@dataclass(frozen=True)
class Entry:
    """A command, or a group of commands: its name, the module in this folder that has it, and its summary."""

    name: str
    module: str
    summary: str  # as in the command's own help


PANELS = {  # titles in the help -> commands
    "Start here": [
        Entry(
            "demo",
            "run_commands",
            "Synthesise a small corpus, train a seed model, and train it further by three "
            "federated algorithms.",
        ),
        Entry(
            "new",
            "project_commands",
            "Start a project: settings with comments, an algorithm with its test, a manifest of your audio.",
        ),
        Entry("recipes", "run_commands", "List the recipes, or show all settings of one."),
        Entry(
            "run",
            "run_commands",
            "Run a recipe on a corpus: train, validate, score on the test speakers, write a report.",
        ),
        Entry("corpus", "corpus_commands", "Import a corpus, or describe one."),
    ],
    "Results": [
        Entry(
            "report",
            "run_commands",
            "Write a report on a run, or a comparison of several: one HTML page, and its "
            "figures as Markdown.",
        ),
        Entry(
            "compare",
            "scoring_commands",
            "Test whether two runs really differ: matched pairs, and a bootstrap over speakers.",
        ),
        Entry(
            "evaluate",
            "scoring_commands",
            "Score a run's model on a split: WER and CER by speaker, and files for sclite.",
        ),
        Entry("transcribe", "scoring_commands", "Recognise recordings with a run's model."),
        Entry(
            "alignments",
            "scoring_commands",
            "Align every utterance word for word; show errors by speaker and the most confused words.",
        ),
    ],
    "Language models and decoding": [
        Entry(
            "nbest",
            "decoding_commands",
            "Decode speech by beam search with a run's model: N-best lists and their word error rates.",
        ),
        Entry(
            "rescore",
            "decoding_commands",
            "Rank N-best lists again with other models: word error rates before and after, "
            "and the best possible.",
        ),
        Entry(
            "personalize",
            "personalisation_commands",
            "Personalise language models to every client's words: word error rates by round and by client.",
        ),
        Entry("lm", "decoding_commands", "Train language models: n-grams, or a Transformer."),
    ],
    "More": [
        Entry(
            "adapt",
            "model_commands",
            "Adapt a model to the text of sessions: make speech from the text, and train on it.",
        ),
        Entry(
            "prune",
            "model_commands",
            "Make a run's model smaller by Federated Pruning, or print what would be left of it (--plan).",
        ),
        Entry(
            "export",
            "model_commands",
            "Write a run's model as ONNX files that recognise speech without antiphon.",
        ),
        Entry(
            "encoders",
            "corpus_commands",
            "List the pretrained encoders that antiphon knows, and check files by their checksums.",
        ),
        Entry(
            "audit",
            "privacy_commands",
            "Attack a private run by its canaries, and compare what is found with the privacy "
            "that it claims.",
        ),
        Entry(
            "federation",
            "federation_commands",
            "Train with clients on other machines: make kits, join as a site, see which sites are connected.",
        ),
    ],
}
ENTRIES = {entry.name: (entry, panel) for panel, entries in PANELS.items() for entry in entries}


class LazyCommands(MutableMapping[str, Any]):
    """Names of commands, and the commands; a command is loaded when it is first read."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(*ENTRIES[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*ENTRIES, *self._loaded]))

    def __len__(self) -> int:
        return len(ENTRIES.keys() | self._loaded.keys())

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]


def _load(entry: Entry, panel: str) -> Any:
    """Return a command or a group, as typer makes it from the function or the application of its module."""
    with _without_garbage_collection(), on_signals(exit_at_once):
        module, parent = import_module(f"antiphon.cli.{entry.module}"), typer.Typer()
    if hasattr(module, f"{entry.name}_command"):
        parent.command(entry.name, rich_help_panel=panel)(getattr(module, f"{entry.name}_command"))
    else:
        parent.add_typer(getattr(module, f"{entry.name}_commands"), name=entry.name, rich_help_panel=panel)
    return get_group(parent).commands[entry.name]


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Import without looking for garbage, then or later, in what modules have: torch's objects stay."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def listed() -> dict[str, Any]:
    """Return commands that have a name and a summary, but nothing else, for lists."""
    return {
        name: TyperCommand(name, help=entry.summary, rich_help_panel=panel)
        for name, (entry, panel) in ENTRIES.items()
    }
