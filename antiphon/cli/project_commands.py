"""`antiphon new`: start a project."""

from __future__ import annotations

from typing import Any

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import options_of
from antiphon.scoring.statistics import plural


@options_of(antiphon.new_project, "folder")
def new_command(**options: Any) -> None:
    """Start a project: settings with comments, an algorithm with its test, a manifest of your audio."""
    project = antiphon.new_project(**options)
    terminal.say(f"{project.folder}: {', '.join(project.files)}")
    if project.audio is not None:
        number = plural(len(project.audio.rows), "utterance")
        terminal.say(f"found: {number} of {plural(project.audio.num_speakers, 'speaker')}")
        for assumption in project.audio.assumptions:
            terminal.say(f"assumed: {assumption}")
    terminal.say("next:")
    for command in project.commands:
        terminal.say(f"  {command}")
