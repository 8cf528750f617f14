"""The JSON files of experiments, runs and models, as they are read again. Older files have fewer keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from antiphon.records.files import check_name
from antiphon.records.schema import Amount, Count, checked

MODEL_ADVICE = "Restore the model's folder, or resume its run, which writes the model again"


@dataclass(frozen=True)
class PlannedRounds:
    total: Count = 0


@dataclass(frozen=True)
class PlannedRun:
    rounds: PlannedRounds = PlannedRounds()


@dataclass(frozen=True)
class PlannedRuns:
    """The part of an experiment's settings that says how many rounds its runs have."""

    runs: Mapping[str, PlannedRun] = field(default_factory=dict)


@dataclass(frozen=True)
class ExperimentFile:
    """experiment.json: the names of the runs, all settings, and the corpus with its checksum."""

    format: ClassVar = "antiphon-experiment/1"
    what: ClassVar = "experiment"
    runs: tuple[str, ...]
    config: Mapping[str, Any]
    data: str = ""
    fingerprint: str = ""

    def __post_init__(self) -> None:
        for name in self.runs:
            check_name(name, "run", "antiphon did not write it")
        checked(PlannedRuns, self.config)

    @property
    def num_rounds(self) -> dict[str, int]:
        """The planned rounds of each run."""
        planned = checked(PlannedRuns, self.config).runs
        return {name: planned.get(name, PlannedRun()).rounds.total for name in self.runs}


@dataclass(frozen=True)
class RunSettings:
    """The settings in run.json that are read again; all of them are shown."""

    algorithm: Mapping[str, Any] = field(default_factory=dict)
    augment: Mapping[str, Any] = field(default_factory=dict)
    labelled: float = 1.0
    corruption: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunFile:
    """run.json: the settings of a run, and where it was carried out."""

    format: ClassVar = "antiphon-run/1"
    what: ClassVar = "run"
    name: str
    recipe: str
    seed: int
    config: RunSettings
    rounds: Count
    num_parameters: Count | None = None
    num_clients: Count | None = None
    cohort_size: Count | None = None
    corrupted: Mapping[str, float] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    device: str | None = None
    started_from: str | None = None


@dataclass(frozen=True)
class TrainingSizes:
    """The training data of a model."""

    clients: Count
    speakers: Count
    utterances: Count
    hours: Amount


@dataclass(frozen=True)
class ModelNotes:
    """What a run notes about its model."""

    run: str = "model"
    round: Count | None = None
    num_parameters: Count | None = None
    training: TrainingSizes | None = None


@dataclass(frozen=True)
class ModelFile:
    """model.json: the structure of a model, and notes of the run that made it."""

    format: ClassVar = "antiphon-model/1"
    what: ClassVar = "model: give the folder of a finished run, such as out/dga"
    advice: ClassVar = MODEL_ADVICE
    blueprint: Mapping[str, Any]
    notes: ModelNotes = ModelNotes()
