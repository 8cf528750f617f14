"""Start a project: settings with comments, an algorithm with its test, and a manifest of your audio."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from antiphon.data.importing.audio_folder import AudioListing, list_audio
from antiphon.experiment.settings import Experiment
from antiphon.recipes import RECIPES
from antiphon.recipes import recipe as load_recipe
from antiphon.records.files import make_folder, write_text
from antiphon.records.folders import check_new_folder
from antiphon.workflows.commented_settings import commented_yaml

SETTINGS, ALGORITHM, TEST = "experiment.yaml", "my_algorithm.py", "test_my_algorithm.py"
MANIFEST = "manifest.jsonl"


@dataclass(frozen=True)
class Project:
    """A new project: its files, what was found in the folder of audio, and the commands to type next."""

    folder: Path
    files: tuple[str, ...]
    audio: AudioListing | None
    commands: tuple[str, ...]


def new_project(folder: str | Path, *, recipe: str = "dga", audio: str | Path | None = None) -> Project:
    """Make a project to edit: all settings of a recipe with comments, and an algorithm with its test.

    With `audio`, the project also gets a manifest of a folder of recordings. It finds out where transcripts,
    speakers and splits are: in a metadata.csv or Common Voice's tables, in LibriSpeech and other formats that
    `antiphon corpus import` knows, or in .txt files beside the recordings and in the names of folders. A
    project that exists can get its manifest later; no file is ever replaced.

    Args:
        folder: The folder to make.
        recipe: The recipe whose settings the project begins with; see antiphon recipes.
        audio: A folder of recordings with transcripts.

    Example:
        project = antiphon.new_project("mine", audio="recordings")
        print("\\n".join(project.commands))
    """
    folder = Path(folder)
    check_new_folder(folder)
    is_project = (folder / SETTINGS).exists()
    if folder.exists() and any(folder.iterdir()) and not (is_project and audio is not None):
        raise ValueError(f"{folder} is not empty: choose another folder")
    if (folder / MANIFEST).exists():
        raise ValueError(f"{folder / MANIFEST} exists: remove it to make another one")
    listing = list_audio(Path(audio)) if audio is not None else None
    texts = {} if is_project else _project_texts(recipe)
    if listing is not None:
        rows = (json.dumps(row, ensure_ascii=False) for row in listing.rows)
        texts[MANIFEST] = "".join(f"{row}\n" for row in rows)
    make_folder(folder)
    for name, text in texts.items():
        write_text(folder / name, text, is_private=name == MANIFEST)
    commands = _commands(folder, listing, Path(audio).resolve() if audio is not None else None)
    return Project(folder, tuple(texts), listing, commands)


def _project_texts(recipe: str) -> dict[str, str]:
    templates = files("antiphon.workflows") / "project_files"
    experiment = load_recipe(recipe)
    run = list(experiment.runs)[-1]
    algorithm = (templates / "my_algorithm.txt").read_text(encoding="utf-8").replace("RUN", run)
    test = (templates / "test_my_algorithm.txt").read_text(encoding="utf-8")
    return {SETTINGS: _settings_text(recipe, experiment), ALGORITHM: algorithm, TEST: test}


def _settings_text(recipe: str, experiment: Experiment) -> str:
    """Return the settings with a heading, and a line that chooses the project's own algorithm."""
    summary = (RECIPES[recipe].__doc__ or "").splitlines()[0] if recipe in RECIPES else ""
    heading = (
        f"# {summary or recipe}\n"
        "#\n"
        "# These are all settings, with the values of the recipe. You may remove any line: then the value\n"
        "# of the recipe holds. Run it:\n"
        "#   antiphon run experiment.yaml --data corpus --out out\n\n"
    )
    text = commented_yaml(experiment)
    own = (
        "    # Uncomment the next line to use your own algorithm instead of the one above, and start\n"
        "    # antiphon in this folder with PYTHONPATH=. before it:\n"
        "    # algorithm: my_algorithm:MyAlgorithm\n"
    )
    # After the algorithm of the last run: of two equal keys, YAML takes the last one.
    before, after = _split(text)
    return f"{heading}{before}{own}{after}"


def _split(text: str) -> tuple[str, str]:
    """Divide the text before the setting `data` of the last run, with its comment."""
    start = text.rindex("\n    data:") + 1
    lines = text[:start].splitlines(keepends=True)
    number = len(lines)
    while lines[number - 1].startswith("    # "):
        number -= 1
    before = "".join(lines[:number])
    return before, text[len(before) :]


def _commands(folder: Path, listing: AudioListing | None, audio: Path | None) -> tuple[str, ...]:
    source = "manifest.jsonl corpus" if listing is not None else "RECORDINGS corpus"
    options = f" --audio-root {shlex.quote(str(audio))}" if audio is not None else ""
    if listing is None or not listing.has_splits:
        options += " --split-speakers 0.8,0.1,0.1"
    return (
        f"cd {shlex.quote(str(folder))}",
        f"antiphon corpus import {source}{options}",
        f"antiphon run {SETTINGS} --data corpus --out out",
        "python -m pytest",
    )
