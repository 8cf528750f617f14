"""Clients whose speech is on other machines, as an experiment sees them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from antiphon.clients.worker import SpeechWorker
from antiphon.core import Pool
from antiphon.experiment.settings import Experiment
from antiphon.recognizer import Recognizer
from antiphon.records.writer import ClientStateFiles, Listener


class Elsewhere(Protocol):
    """The clients of a federation. They train every run whose data is `federated`."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """The clients, and how much speech each has."""

    @property
    def sizes(self) -> Mapping[str, Any]:
        """Numbers of clients, speakers, utterances and hours, for the model card."""

    def check(self, experiment: Experiment) -> None:
        """Refuse an experiment that needs the speech of clients on the server."""

    def pool(
        self,
        experiment: Experiment,
        name: str,
        folder: Path,
        recognizer: Recognizer,
        worker: SpeechWorker,
        listener: Listener,
    ) -> tuple[Pool, ClientStateFiles]:
        """Return the pool of a run, and the states of its clients. `worker` is for those on the server."""
