"""The command line as a user types it, on a small corpus of tones: help, recipes, corpora, starting a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from command import Antiphon, run_arguments, script_in_fork
from world import World, write_source

from antiphon import config
from antiphon.data.corpus import Corpus
from antiphon.recipes import RECIPES, recipe

# --- Finding one's way ----------------------------------------------------------------------------


def test_help_names_every_command(antiphon: Antiphon) -> None:
    done = antiphon("--help")
    assert done.code == 0
    training = ("demo", "corpus", "recipes", "run", "evaluate", "transcribe", "report")
    decoding = ("compare", "alignments", "nbest", "rescore", "lm")
    for command in (*training, *decoding):
        assert command in done.output


def test_recipes_lists_each_with_what_it_is(antiphon: Antiphon) -> None:
    done = antiphon("recipes")
    assert done.code == 0
    for name, make in RECIPES.items():
        line = next(line for line in done.output.splitlines() if line.startswith(name + " "))
        assert (make.__doc__ or "").split()[0] in line


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_s_settings_are_yaml_that_makes_the_recipe_again(
    antiphon: Antiphon, name: str, tmp_path: Path
) -> None:
    done = antiphon("recipes", name)
    assert done.code == 0
    (tmp_path / "mine.yaml").write_text(done.output)
    again = recipe(str(tmp_path / "mine.yaml"))
    assert config.to_dict(again) == yaml.safe_load(done.output)
    assert config.to_dict(again)["runs"] == config.to_dict(RECIPES[name]())["runs"]


# --- Corpora --------------------------------------------------------------------------------------


def test_corpus_import_and_show(antiphon: Antiphon, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", num_utterances=3)
    (source / "s00-0.wav").write_bytes(b"this is not sound")
    done = antiphon("corpus", "import", source, tmp_path / "corpus")
    assert done.code == 0, done.output
    assert "12 speakers" in done.output
    assert "1 skipped" in done.output
    corpus = Corpus.open(tmp_path / "corpus")
    assert len(corpus) == 29
    shown = antiphon("corpus", "show", tmp_path / "corpus")
    assert shown.code == 0, shown.output
    for split in ("pool", "heldout", "test"):
        assert split in shown.output
    assert (tmp_path / "corpus-clients.png").stat().st_size > 1000


def test_corpus_import_of_a_table_says_what_it_changed(antiphon: Antiphon, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", num_utterances=2)
    names = ("s00-0", "s00-1", "s01-0")
    texts = ("Go, 2 of you!", "Smørrebrød", "go")
    rows = [f'{name}.wav,"{text}",{name[:3]}' for name, text in zip(names, texts, strict=True)]
    (source / "table.csv").write_text("\n".join(["file,text,who", *rows]) + "\n")
    (tmp_path / "chosen.tsv").write_text("s00-0\ttest\ns00-1\tpool\ngone\tpool\n")
    steps = [
        part for step in ("spell_digits", "strip_punctuation", "lower_case") for part in ("--text", step)
    ]
    options = ["--column", "speaker=who", "--select", tmp_path / "chosen.tsv", "--alphabet", "auto"]
    done = antiphon("corpus", "import", source / "table.csv", tmp_path / "corpus", *steps, *options)
    assert done.code == 0, done.output
    assert "texts changed: spell_digits 1, lower_case 2, strip_punctuation 1" in done.output
    assert "rare characters, to check for typos: 'b': 1" in done.output
    assert "not in the source" in done.output
    corpus = Corpus.open(tmp_path / "corpus")
    assert {one.id: one.split for one in corpus.utterances()} == {"s00-0": "test", "s00-1": "pool"}
    done = antiphon("corpus", "import", source / "table.csv", tmp_path / "english", "--column", "speaker=who")
    assert "outside the alphabet (--alphabet, --text): " in done.output
    assert "'ø': 1" in done.output


def test_corpus_import_refuses_a_destination_that_is_there(antiphon: Antiphon, world: World) -> None:
    done = antiphon("corpus", "import", world.corpus.parent / "source", world.corpus)
    assert done.code == 2
    assert "exists already" in done.output


def test_corpus_import_can_part_speakers_and_rename_splits(antiphon: Antiphon, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", num_utterances=2)
    done = antiphon("corpus", "import", source, tmp_path / "corpus", "--rename-split", "heldout=dev")
    assert done.code == 0, done.output
    assert {u.split for u in Corpus.open(tmp_path / "corpus").utterances()} == {"pool", "dev", "test"}


def test_corpus_show_of_something_else_says_what_to_do(antiphon: Antiphon, tmp_path: Path) -> None:
    done = antiphon("corpus", "show", tmp_path)
    assert done.code == 2
    assert "is not a corpus" in done.output
    assert "antiphon corpus import" in done.output


# --- What a run needs -----------------------------------------------------------------------------


SLOW_TO_IMPORT = """
import sys
from antiphon import cli
from antiphon.experiment import runner as launch

launch.write_report = lambda *arguments: None
try:
    cli.main()
finally:
    print("imported:", sorted({"matplotlib", "torch._dynamo", "torch._inductor"} & sys.modules.keys()))
"""


def test_a_run_waits_neither_for_torch_s_compiler_nor_for_a_drawing(world: World, tmp_path: Path) -> None:
    """Two seconds at every start, in every process."""
    (tmp_path / "script.py").write_text(SLOW_TO_IMPORT)
    arguments = run_arguments(world.corpus, tmp_path / "out")
    done = script_in_fork(tmp_path / "script.py", arguments, tmp_path / "log")
    assert done.code == 0, done.output
    assert done.output.endswith("imported: []\n")
