"""The rounds of Federated Marginal Personalization: clients report counts, the server pools and releases.

Z. Liu and F. Peng, "Federated Marginal Personalization for ASR Rescoring", 2020, algorithm 1. The rounds run
through the same engine as training, wherever the clients are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from torch import Tensor

from antiphon.algorithms.fmp import MARGINAL, Fmp, FmpState, background_params
from antiphon.core import Pool
from antiphon.engine import Engine, Rounds
from antiphon.personalisation.marginal_adaptation import Unigram
from antiphon.personalisation.schedule import Schedule
from antiphon.pools.process_group import ProcessGroup, SingleProcess
from antiphon.records import checkpoint
from antiphon.records.files import make_folder, write_json
from antiphon.records.listener import Listen, Listeners, RunInfo
from antiphon.records.reading import read_object
from antiphon.records.writer import Listener, reporting_a_stop

IDENTITY = "protocol.json"  # in the folder of a run of rounds: the data and settings that it belongs to


@dataclass(frozen=True)
class MarginalRounds:
    """One run of rounds.

    total: the number of rounds. num_lists: of each client that may report.
    folder: for the journal and checkpoints; None: they are not kept.
    settings: what listeners hear about the run.
    """

    name: str
    total: int
    num_lists: Mapping[str, int]
    background: Unigram
    schedule: Schedule
    settings: Mapping[str, object]
    algorithm: Fmp = Fmp()
    folder: Path | None = None
    group: ProcessGroup = SingleProcess()
    listeners: tuple[Listen, ...] = ()

    def run(self, pool: Pool, identity: Mapping[str, object]) -> list[np.ndarray | None]:
        """Return q̄ after each round; None as long as nobody has reported a word.

        identity: the data and settings of the rounds. A folder with others is refused.
        """
        if self.total == 0:
            return []
        cohort = self.schedule.cohort or len(self.num_lists)
        rounds = Rounds(self.total, cohort, min_clients=0, valid_every=0, keep_last=self.total + 1)
        with self._checked_folder(identity) as folder:
            listener = self._listener(folder, rounds)
            engine = Engine(
                self.algorithm, pool, list(self.num_lists), rounds, folder, self.schedule.seed,
                listener=listener, group=self.group, draw=self.schedule.draw,
            )  # fmt: skip
            with reporting_a_stop(listener):
                last: FmpState = engine.run(
                    background_params(self.background.probabilities.tolist()), resume=True
                ).state
            listener.ended({})

            def read_shared_words() -> tuple[Tensor | None, ...]:
                numbers, saved = range(1, self.total + 1), folder / "checkpoints"
                states = [checkpoint.load(checkpoint.folder_of(saved, n), last)[0] for n in numbers]
                return tuple(state.params[MARGINAL] if state.mass > 0 else None for state in states)

            shared = self.group.on_rank_zero(read_shared_words)
        return [words.numpy() if words is not None else None for words in shared]

    def _listener(self, folder: Path, rounds: Rounds) -> Listener:
        """Return the listeners of the rounds; one that ignores all events if they are complete."""
        if checkpoint.saved_rounds(folder / "checkpoints")[-1:] == [rounds.total]:
            return Listener()
        info = RunInfo(
            name=self.name,
            recipe="personalize",
            seed=self.schedule.seed,
            num_rounds=rounds.total,
            num_clients=len(self.num_lists),
            folder=folder,
            settings={
                "algorithm": self.settings,
                "rounds": {"total": rounds.total, "cohort": rounds.cohort},
            },
        )
        return Listeners([listen(info) for listen in self.listeners])

    @contextmanager
    def _checked_folder(self, identity: Mapping[str, object]) -> Iterator[Path]:
        """Yield the folder of the rounds, checked to be of the same data and settings."""
        if self.folder is None:
            with TemporaryDirectory() as scratch:
                yield Path(scratch)
            return
        folder = self.folder / self.name

        def check() -> None:
            file = folder / IDENTITY
            if file.exists() and read_object(file) != identity:
                raise ValueError(
                    f"{folder} holds rounds of other lists or settings: continue with those, "
                    "or choose another folder"
                )
            make_folder(folder)
            write_json(file, identity)

        self.group.on_rank_zero(check)
        yield folder


def run_name(name: str, schedule: Schedule, sigma: float) -> str:
    """Return the name of a run of rounds.

    >>> run_name("scored", Schedule(10), 0.1)
    'scored-T10-sigma0.1'
    """
    return f"{name}-T{schedule.rounds}-sigma{sigma:g}"


def schedule_notes(schedule: Schedule) -> dict[str, object]:
    """Return a schedule for the identity of a run."""
    notes = dict(vars(schedule))
    if not schedule.share:
        del notes["share"]  # unknown to rounds that were written before there was one
    return notes
