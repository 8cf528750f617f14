"""The settings of an experiment: a model, speakers, and runs that start from each other."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from antiphon import config
from antiphon.algorithms.fedavg import FedAvg
from antiphon.clients.faults import Unreliability
from antiphon.clients.precision import check_precision, from_bfloat16
from antiphon.clients.simulated_clock import Clock
from antiphon.core import Algorithm
from antiphon.data.corruption.corrupted_clients import Corruption
from antiphon.data.frontends import Filterbank, Frontend
from antiphon.data.huggingface_folder import HuggingFaceTokensConfig
from antiphon.data.partition import BySpeaker, Partition
from antiphon.data.store import FeatureStore
from antiphon.data.tokens import CharactersConfig, SavedTokensConfig, TokensConfig
from antiphon.engine import Rounds
from antiphon.models.adapters import AdaptedConfig, can_start_from
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.huggingface.speech_models import HuggingFaceConfig
from antiphon.models.model import ModelConfig
from antiphon.models.noise import SpecAugment
from antiphon.recognizer import Blueprint
from antiphon.records.files import check_name
from antiphon.registry import choice_name
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.seeding import derive
from antiphon.server.run_context import check_order, parts_of

RESERVED_NAMES = ("experiment.json", "report.html", "RESULTS.md")  # files beside the folders of runs


@dataclass(frozen=True)
class Speakers:
    """The roles of speakers: those of the pool are split into speakers of the server (seed) and clients.

    The split has a seed of its own, so that experiments with other seeds have the same speakers. If the
    corpus has a split for the server, `server` names it and all speakers of the pool are clients.
    """

    pool: str = "pool"  # the split of the speakers that models are trained on
    valid: str = "heldout"  # the split of the speakers that choose the best round
    test: str = "test"  # the split of the speakers that score the result
    seed_fraction: float = 0.5  # share of the pool's speakers that are the server's own
    split_seed: int = 0  # the seed that decides which speakers are the server's
    renamed: ClassVar = {"parting": "split_seed"}
    server: str = ""  # the split of the server's own speech
    organisation: str = ""  # the split of speech made from an organisation's text, for the server

    def groups(self, store: FeatureStore) -> dict[str, np.ndarray]:
        """Return the utterances of seed, federated, both, valid, test and, if there is one, organisation."""
        speakers = store.speakers(self.pool)
        order = np.random.default_rng(derive(self.split_seed, "parting")).permutation(len(speakers))
        count = round(self.seed_fraction * len(speakers))
        seed = [speakers[i] for i in order[:count]]
        federated = [speakers[i] for i in order[count:]]
        groups = {
            "seed": store.where(split=self.pool, speakers=seed),
            "federated": store.where(split=self.pool, speakers=federated),
            "both": store.where(split=self.pool),
            "valid": store.where(split=self.valid),
            "test": store.where(split=self.test),
        }
        if self.server:
            server = store.where(split=self.server)
            groups |= {"seed": server, "federated": groups["both"]}
            groups["both"] = np.sort(np.concatenate([server, groups["both"]]))
        if self.organisation:
            groups["organisation"] = store.where(split=self.organisation)
        may_be_empty = {"seed": count == 0, "federated": count == len(speakers)}
        for name, indices in groups.items():
            if len(indices) == 0 and not may_be_empty.get(name):
                raise ValueError(
                    f"no utterance for {name!r}: the corpus has the splits {', '.join(store.split_names)}; "
                    f"set speakers.pool, .valid and .test (now {self.pool}, {self.valid}, {self.test})"
                )
        return groups


def _read_data(value: Any) -> dict[str, Any]:
    """Read `data` in its old form, such as 4*seed+organisation."""
    parts = [re.fullmatch(r"(?:([1-9]\d*)\*)?(\w+)", part) for part in str(value).split("+")]
    times = {part[2]: int(part[1] or 1) for part in parts if part}
    is_old = isinstance(value, str) and ("*" in value or "+" in value)
    return {"data": times if is_old and len(times) == len(parts) else value}


@dataclass(frozen=True)
class Run:
    """One run: an algorithm, its clients and its data. It is a row of a table."""

    algorithm: Algorithm = FedAvg()
    # The group of utterances: seed, federated, both or organisation. A mapping says how often a pass over the
    # data takes the utterances of each group: {seed: 4, organisation: 1}.
    data: str | dict[str, int] = "federated"
    clients: Partition = BySpeaker()
    start_run: str = "seed"  # the run whose best model this one starts from; empty: none
    rounds: Rounds = Rounds()
    labelled: float = 1.0  # share of the clients that have texts; texts of others are never read
    model: ModelConfig | None = None  # null: the experiment's
    held_out: float = 0.0  # share of each client's utterances that score its own model, without training
    start_folder: str = ""  # a folder with a model to start from, instead of a run
    secure_aggregation: SecureAggregation | None = None  # hides single updates from the server; null: off
    converted: ClassVar = {
        "data": _read_data,
        "start": lambda value: config.run_or_folder(value, "start_run", "start_folder"),
    }

    def __post_init__(self) -> None:
        if self.start_folder and self.start_run not in ("", Run.start_run):
            raise ValueError(
                f"a run starts from {self.start_run!r} or from {self.start_folder!r}: "
                "set start_run or start_folder to nothing"
            )
        if self.start_folder:
            object.__setattr__(self, "start_run", "")
        if not 0 <= self.labelled <= 1:
            raise ValueError(f"labelled is a share between 0 and 1, not {self.labelled}")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out is a share of at least 0 and below 1, not {self.held_out}")
        if self.labelled < 1 and not any(
            getattr(p, "labels_speech", False) for p in parts_of(self.algorithm)
        ):
            raise ValueError(
                "labelled below 1 leaves clients without texts, which only self_trained can train on: "
                "set algorithm=self_trained or labelled=1"
            )
        if self.labelled < 1 and self.times != {"federated": 1}:
            raise ValueError("labelled below 1 is for data=federated: the server has the texts of the others")
        if self.rounds.over_selection > 1 and any(
            getattr(part, "effect", "") == "private" for part in parts_of(self.algorithm)
        ):
            raise ValueError(
                "private: with rounds.over_selection, whether one client counts depends on how fast others "
                "are, and its accounting assumes that it does not: set over_selection=1"
            )
        check_order(self.algorithm)
        for part in parts_of(self.algorithm):
            if hasattr(part, "check_run"):
                part.check_run(self)
            if self.secure_aggregation and getattr(part, "collects", False):
                raise ValueError(
                    f"{choice_name(type(part))} combines the same updates in several ways, which would "
                    "reveal single updates: it cannot be used with secure_aggregation"
                )

    @property
    def times(self) -> dict[str, int]:
        """How often a pass over the data takes the utterances of each group; the server's group is first.

        >>> Run(data={"organisation": 1, "seed": 4}).times
        {'seed': 4, 'organisation': 1}
        """
        times = {self.data: 1} if isinstance(self.data, str) else self.data
        return dict(sorted(times.items(), key=lambda item: item[0] != "seed"))

    @property
    def teacher_run(self) -> str:
        """The run whose model labels this one's speech; empty: its own model, one in a folder, or none."""
        names = (getattr(part, "teacher_run", "") for part in parts_of(self.algorithm))
        return next(filter(None, names), "")

    @property
    def makes_submodel(self) -> bool:
        """Whether the run ends with a smaller model than it started with."""
        return any(getattr(part, "effect", "") == "reshapes" for part in parts_of(self.algorithm))


@dataclass(frozen=True)
class Experiment:
    """All settings of a recipe; `--set` changes any of them by its path."""

    recipe: str = ""  # the recipe that the settings began with
    seed: int = 0  # of first parameters, cohorts, the order of utterances, masks and dropout
    frontend: Frontend = Filterbank()
    tokens: TokensConfig = CharactersConfig()
    model: ModelConfig = CtcConfig(ConformerConfig(stack=4))
    augment: SpecAugment = SpecAugment()
    speakers: Speakers = Speakers()
    corruption: Corruption = Corruption()
    unreliability: Unreliability = Unreliability()
    clock: Clock | None = None  # simulated time of clients; null: rounds have no duration
    stacked: bool = True  # on a GPU, train many clients at once; a CPU trains one after another
    precision: str = "float32"  # of matrix products in training; on a GPU also tf32 or bfloat16
    runs: dict[str, Run] = field(default_factory=dict)  # in the order in which they are carried out

    converted: ClassVar = {"bfloat16": from_bfloat16}

    def __post_init__(self) -> None:
        check_precision(self.precision)
        self._check_tokens()
        self._check_clock()
        known: set[str] = set()
        small: set[str] = set()  # runs that end with a pruned model
        for name, run in self.runs.items():
            check_name(name, "run", "give the run another name")
            if name in RESERVED_NAMES:
                raise ValueError(
                    f"run {name!r} has the name of a file of the experiment: give it another name"
                )
            if run.makes_submodel and run.start_run in small:
                pruned = f"the model of {run.start_run!r}, which is pruned already"
                raise ValueError(f"run {name!r} would prune {pruned}")
            if run.makes_submodel or run.start_run in small:
                small.add(name)
            self._check_run(name, run, known)
            known.add(name)

    def _check_run(self, name: str, run: Run, known: Collection[str]) -> None:
        """Refuse a run that needs a later run, or has no data to train on."""
        before = f"which does not come before it (before it: {', '.join(known) or 'none'})"
        if run.start_run and run.start_run not in known:
            raise ValueError(f"run {name!r} starts from {run.start_run!r}, {before}")
        if run.teacher_run and run.teacher_run not in known:
            raise ValueError(f"run {name!r} is taught by {run.teacher_run!r}, {before}")
        if run.start_run in known and not can_start_from(self.model_of(name), self.model_of(run.start_run)):
            raise ValueError(f"run {name!r} starts from {run.start_run!r}, which has another model")
        *others, last = self._data()
        if "+".join(run.times) not in (*others, last) or min(run.times.values()) < 1:
            raise ValueError(f"run {name!r}: data is {', '.join(others)} or {last}, not {run.data!r}")

    def _data(self) -> tuple[str, ...]:
        more = ("organisation", "seed+organisation") if self.speakers.organisation else ()
        return ("seed", "federated", "both", *more)

    def _check_clock(self) -> None:
        """Refuse settings that need a simulated clock without one, and two kinds of slow clients."""
        if self.clock is not None:
            if self.unreliability.deadline:
                raise ValueError(
                    "unreliability.deadline has speeds of its own, and the clock has others: set "
                    "rounds.deadline instead"
                )
            return
        for name, run in self.runs.items():
            if any(getattr(part, "is_asynchronous", False) for part in parts_of(run.algorithm)):
                raise ValueError(
                    f"run {name!r}: without a clock, all clients answer at once and nothing is asynchronous: "
                    "set clock"
                )
            if run.rounds.needs_clock:
                raise ValueError(
                    f"run {name!r}: rounds.deadline and rounds.over_selection depend on how fast clients "
                    "are: set clock"
                )

    def _check_tokens(self) -> None:
        """Refuse other tokens for the output layer of a folder, even if their number is the same."""
        if not isinstance(self.model, HuggingFaceConfig) or isinstance(self.tokens, SavedTokensConfig):
            return
        if self.model.fresh_output == isinstance(self.tokens, HuggingFaceTokensConfig):
            raise ValueError(
                "the output layer of a Hugging Face model and the tokens must fit: either tokens are "
                "hugging_face_tokens and model.fresh_output is false, or tokens are others and it is true"
            )

    def check_masks(self) -> None:
        """Refuse frequency masks if frames are samples; this reads the front end's files."""
        if self.augment.num_frequency_masks and getattr(self.frontend, "is_waveform", False):
            raise ValueError("a waveform has no frequency bands to mask: set augment.num_frequency_masks=0")

    def chosen(self, names: str | Sequence[str]) -> dict[str, Run]:
        """Return the runs with these names, in the experiment's order; all runs if no name is given."""
        names = [names] if isinstance(names, str) else names
        for name in names:
            if name not in self.runs:
                raise config.unknown(name, self.runs, "", "run")
        return {name: run for name, run in self.runs.items() if not names or name in names}

    def model_of(self, name: str) -> ModelConfig:
        """Return the model of a run."""
        model = self.runs[name].model or self.model
        return model.added_to(self.model) if isinstance(model, AdaptedConfig) else model

    def blueprint(self, name: str) -> Blueprint:
        """Return the front end and the model of a run."""
        return Blueprint(self.frontend, self.model_of(name))
