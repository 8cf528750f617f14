"""What a client makes of a task from which it is to label its own speech."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from antiphon.core import Task
from antiphon.tasks.pseudo_labels import VIEW, TeacherInstruction
from antiphon.tasks.views import enter


@dataclass
class Listening:
    """Stands for a labeller: keeps the lesson, and labels nothing."""

    instruction: TeacherInstruction | None = None

    def labelled(self, client: Any, instruction: TeacherInstruction) -> Any:
        self.instruction = instruction
        return client


def read_instruction(task: Task) -> tuple[Task, TeacherInstruction | None]:
    """Return a task as the client's work sees it, and the lesson in it; None: it has none."""
    listening = Listening()
    client = SimpleNamespace(runtime=SimpleNamespace(memory={VIEW: listening}))
    return enter(task, client).task, listening.instruction
