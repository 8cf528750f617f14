"""Run folders as data: the files that `antiphon run` wrote, read and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from antiphon.records import journal
from antiphon.records.reading import fields_of, read_as, read_object
from antiphon.records.run_files import ExperimentFile, RunFile
from antiphon.records.schema import Count, checked
from antiphon.scoring.error_rate import Errors, Tally

Entry = Mapping[str, Any]
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoresFile:
    """scores.json: errors on one split, of all speakers and of each."""

    advice: ClassVar = "Score the model again with antiphon evaluate"
    split: str
    which: str
    words: Errors
    characters: Errors
    num_utterances: Count
    speakers: Mapping[str, Tally]

    def __post_init__(self) -> None:
        if sum(self.speakers.values(), Tally()) != self.overall:
            raise ValueError("the errors of the speakers do not add up to those of all")

    @property
    def overall(self) -> Tally:
        return Tally(self.words, self.characters, self.num_utterances)


@dataclass(frozen=True)
class Evaluation:
    """The scores of one model on one split, pooled and by speaker. `folder` has its transcripts."""

    overall: Tally
    speakers: Mapping[str, Tally]
    folder: Path | None = None

    @classmethod
    def of(cls, scores: Entry, folder: Path | None = None) -> Evaluation:
        """Read the contents of scores.json."""
        body: ScoresFile = checked(ScoresFile, scores)
        return cls(body.overall, body.speakers, folder)


@dataclass(frozen=True)
class RunFolder:
    """One run. `evaluations`: split → which ("start", "best") → Evaluation.

    `label` names it in a report; `position` is its place there, which decides its colour.
    """

    path: Path
    label: str
    about: Entry
    journal: Sequence[Entry]
    clock: Sequence[Entry]
    evaluations: Mapping[str, Mapping[str, Evaluation]]
    notes: Sequence[str] = field(default=())
    position: int = 0

    @classmethod
    def load(cls, path: Path) -> RunFolder:
        """Read a folder; a ValueError names the file that is missing or damaged."""
        if not (path / "run.json").is_file():
            raise ValueError(f"{path} is not a run folder: it has no run.json (`antiphon run` writes one)")
        about = read_object(path / "run.json", RunFile.format)
        fields_of(RunFile, about, str(path / "run.json"))
        notes: list[str] = []
        # The clock first: it has checksums of lines of the journal, which may grow meanwhile.
        clock = _read_rounds(path / "clock.jsonl", notes)
        lines = _read_rounds(path / "journal.jsonl", notes)
        if (path / "journal.jsonl").is_file():
            journal.check_journal(path / "journal.jsonl", clock)
        evaluations = _read_evaluations(path / "evaluation")
        return cls(path, str(about["name"]), about, lines, clock, evaluations, tuple(notes))

    @cached_property
    def trained(self) -> list[Entry]:
        """Journal entries of finished rounds: all but that of the starting model."""
        return [entry for entry in self.journal if entry["round"] > 0]

    @property
    def started_from(self) -> str | None:
        """The run or folder whose model it started from; None for random weights."""
        return str(self.about["started_from"]) if self.about.get("started_from") else None

    @property
    def num_finished(self) -> int:
        return max((int(entry["round"]) for entry in self.trained), default=0)

    @property
    def num_planned(self) -> int:
        return int(self.about["rounds"])

    @property
    def num_clients(self) -> int:
        """The number of clients in the pool; if run.json has none, the number in the journal."""
        seen = {client for entry in self.trained for client in entry.get("cohort", ())}
        return int(self.about.get("num_clients") or len(seen))

    @property
    def cohort_size(self) -> int:
        largest = max((len(entry.get("cohort", ())) for entry in self.trained), default=0)
        return int(self.about.get("cohort_size") or largest)

    @cached_property
    def corrupted(self) -> frozenset[str]:
        """Clients with more than half of their utterances corrupted on purpose."""
        shares: Mapping[str, float] = self.about.get("corrupted") or {}
        return frozenset(name for name, share in shares.items() if share > 0.5)

    @cached_property
    def validation(self) -> dict[str, tuple[Array, Array]]:
        """Name ("wer", "cer", "loss") → (rounds, values)."""
        measured = [entry for entry in self.journal if entry.get("valid")]
        names = dict.fromkeys(name for entry in measured for name in entry["valid"])
        return {name: series(measured, "valid", name) for name in names}

    @property
    def bytes_down(self) -> int:
        return sum(int(entry.get("bytes_down", 0)) for entry in self.trained)

    @property
    def bytes_up(self) -> int:
        return sum(int(entry.get("bytes_up", 0)) for entry in self.trained)

    @property
    def total_bytes(self) -> int | None:
        return self.bytes_down + self.bytes_up if self.trained else None

    @property
    def total_seconds(self) -> float | None:
        return sum(float(entry.get("seconds") or 0) for entry in self.clock) if self.clock else None

    def peak_mib(self, memory: str) -> float:
        """Return the highest memory use of all rounds, of one kind ("rss", "gpu")."""
        return max((entry.get(f"{memory}_mib") or 0.0 for entry in self.clock), default=0.0)

    @cached_property
    def speech_seconds(self) -> float | None:
        """Seconds of speech of the clients that answered, each counted once."""
        seconds: dict[str, float] = {}
        for entry in self.trained:
            for name, stats in entry.get("clients", {}).items():
                seconds[name] = max(seconds.get(name, 0.0), float(stats.get("seconds") or 0.0))
        return sum(seconds.values()) or None


def series(entries: Sequence[Entry], *keys: str) -> tuple[Array, Array]:
    """Return (rounds, values) of the entries that have a number under the nested `keys`.

    >>> series([{"round": 1, "valid": {"wer": 0.5}}, {"round": 2}], "valid", "wer")
    (array([1.]), array([0.5]))
    """
    rounds, values = [], []
    for entry in entries:
        value: Any = entry
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, int | float) and math.isfinite(value):
            rounds.append(float(entry["round"]))
            values.append(float(value))
    return np.array(rounds), np.array(values)


def load_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """Load run folders, or experiments (all their runs), and give each run its own label."""
    runs = [RunFolder.load(folder) for path in paths for folder in runs_of(path)]
    names = [run.label for run in runs]
    labels: list[str] = []
    for run in runs:
        label = run.label
        if names.count(label) > 1:
            label = f"{run.path.resolve().parent.name}/{label}"
        labels.append(label if label not in labels else f"{label} ({len(labels) + 1})")
    return [replace(run, label=labels[index], position=index) for index, run in enumerate(runs)]


def planned_rounds(path: Path) -> dict[Path, int]:
    """Return the run folders of an experiment, with their planned rounds; none if it is no experiment."""
    if not (path / "experiment.json").is_file():
        return {}
    planned = read_as(ExperimentFile, path / "experiment.json").num_rounds
    return {path / name: number for name, number in planned.items()}


def begun_folders(path: Path) -> list[Path]:
    """Return the run folders of an experiment that have begun; or the run folder itself, if it has."""
    return [folder for folder in planned_rounds(path) or [path] if (folder / "run.json").is_file()]


def runs_of(path: Path) -> list[Path]:
    """Return the run folders of an experiment that have begun, in its order; or the run folder itself."""
    begun, planned = begun_folders(path), planned_rounds(path)
    if planned and not begun:
        names = ", ".join(folder.name for folder in planned)
        raise ValueError(f"{path}: none of the runs of this experiment has begun ({names})")
    return begun or [path]


def _read_rounds(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Read a journal, and add what is missing or incomplete to `notes`."""
    if not path.is_file():
        notes.append(f"{path.name} is missing: no round has finished yet")
        return []
    return journal.read(path, notes.append)


def _read_evaluations(folder: Path) -> dict[str, dict[str, Evaluation]]:
    evaluations: dict[str, dict[str, Evaluation]] = {}
    for path in sorted(folder.glob("[!.]*/[!.]*/scores.json")):
        scores = read_as(ScoresFile, path)
        evaluation = Evaluation(scores.overall, scores.speakers, path.parent)
        evaluations.setdefault(scores.split, {})[scores.which] = evaluation
    return evaluations
