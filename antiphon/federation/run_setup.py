"""What a site needs to take part in a run: front end, tokens, model and a few settings, in one message.

It is sent once for each run, and a site keeps it under its digest. It is the folder of a recogniser, as
`antiphon.Recognizer` saves it, with the settings as one more file.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antiphon import config
from antiphon.clients.client import ClientRuntime
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.states import ClientStates
from antiphon.clients.worker import SpeechWorker
from antiphon.data.corpus import Corpus
from antiphon.data.partition import Partition
from antiphon.data.store import Progress, compute_features
from antiphon.experiment.preparation import choose_device, hold_out
from antiphon.federation.sent_folders import check_sent, pack_files
from antiphon.models.noise import SpecAugment
from antiphon.pools.remote_messages import Message
from antiphon.privacy.announced_noise import AnnouncedNoise
from antiphon.recognizer import Recognizer
from antiphon.records.files import write_json
from antiphon.records.reading import read_object

SETTINGS = "setup.json"
ADVICE = "Remove its folder: the server sends it again"


@dataclass(frozen=True)
class SetupSettings:
    """The settings of a run that its clients need."""

    base: tuple[str, ...]  # the parameters that are trained, in order
    seed: int = 0
    augment: SpecAugment = SpecAugment()
    stacked: bool = True
    precision: str = "float32"
    held_out: float = 0.0
    renew_lost_states: bool = False
    unlabelled: tuple[str, ...] = ()  # clients whose texts are not used
    noise: AnnouncedNoise | None = None  # that is added to the sum of each round; null: none


def pack_setup(recognizer: Recognizer, settings: SetupSettings) -> Message:
    """Return the message that sets a run up at a site; the model is the one that the run starts from."""
    with tempfile.TemporaryDirectory() as folder:
        recognizer.save(Path(folder))
        write_json(Path(folder) / SETTINGS, config.to_dict(settings))
        return pack_files("setup", Path(folder))


def read_settings(folder: Path) -> SetupSettings:
    """Return the settings in a setup that was sent."""
    path = folder / SETTINGS
    return config.from_dict(SetupSettings, read_object(path, advice=ADVICE), str(path))


def open_worker(
    folder: Path,
    corpus: Corpus,
    partition: Partition,
    device: str,
    states: ClientStates | None,
    progress: Progress | None = None,
) -> SpeechWorker:
    """Return the worker of a site for a run; features that are missing are computed."""
    check_sent(folder)
    settings = read_settings(folder)
    chosen = choose_device(device)
    recognizer = Recognizer.load(folder)
    store = compute_features(corpus, recognizer.blueprint.frontend, 1, progress)
    clients = partition(store, np.arange(len(store)), settings.seed)
    if hidden := [clients[client] for client in settings.unlabelled if client in clients]:
        store = store.without_texts(np.concatenate(hidden))
    trained, held_out = hold_out(clients, settings.held_out, settings.seed)
    parameters = dict(recognizer.model.named_parameters())
    base = {name: parameters[name].detach().to(chosen, copy=True) for name in settings.base}
    options = (settings.augment, chosen, settings.precision)
    runtime = ClientRuntime(store, recognizer.tokens, recognizer.model, base, *options)
    if states is not None:
        states.renew_lost = settings.renew_lost_states
    kind = StackedWorker if settings.stacked and chosen.type == "cuda" else SpeechWorker
    return kind(runtime, trained, states, held_out)
