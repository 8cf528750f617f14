"""What a client makes of a task from which it is to label its own speech."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from antiphon.core import Task
from antiphon.tasks.pseudo_labels import VIEW, Lesson
from antiphon.tasks.views import enter


@dataclass
class Listening:
    """Stands for a labeller: keeps the lesson, and labels nothing."""

    lesson: Lesson | None = None

    def labelled(self, client: Any, lesson: Lesson) -> Any:
        self.lesson = lesson
        return client


def read_lesson(task: Task) -> tuple[Task, Lesson | None]:
    """Return a task as the client's work sees it, and the lesson in it; None: it has none."""
    listening = Listening()
    client = SimpleNamespace(bench=SimpleNamespace(memory={VIEW: listening}))
    return enter(task, client).task, listening.lesson
