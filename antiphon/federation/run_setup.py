"""What a site needs to take part in a run: front end, tokens, model and a few settings, in one message.

It travels once for each run, and a site keeps it under its digest. It is the folder of a recogniser, as
`antiphon.Recognizer` saves it, with the settings as one more file.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from antiphon import config
from antiphon.clients.client import ClientRuntime
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.states import ClientStates
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Tensors
from antiphon.data.corpus import Corpus
from antiphon.data.partition import BySpeaker
from antiphon.data.store import Progress, compute_features
from antiphon.experiment.preparation import choose_device, hold_out
from antiphon.models.noise import SpecAugment
from antiphon.pools.remote_messages import Message, WireError, pack
from antiphon.recognizer import Recognizer
from antiphon.records.folders import new_folder

SETTINGS = "setup.json"


@dataclass(frozen=True)
class SetupSettings:
    """The settings of a run that its clients need."""

    base: tuple[str, ...]  # the parameters that are trained, in order
    seed: int = 0
    augment: SpecAugment = SpecAugment()
    stacked: bool = True
    bfloat16: bool = False
    held_out: float = 0.0
    renew_lost_states: bool = False
    unlabelled: tuple[str, ...] = ()  # clients whose texts are not used


def pack_setup(recognizer: Recognizer, settings: SetupSettings) -> Message:
    """Return the message that sets a run up at a site; the model is the one that the run starts from."""
    with tempfile.TemporaryDirectory() as folder:
        recognizer.save(Path(folder))
        (Path(folder) / SETTINGS).write_text(json.dumps(config.to_dict(settings)))
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        names = [path.relative_to(folder).as_posix() for path in files]
        contents = [torch.from_numpy(np.fromfile(path, dtype=np.uint8)) for path in files]
    return pack({"verb": "setup"}, dict(zip(names, contents, strict=True)))


def unpack_setup(files: Tensors, folder: Path) -> None:
    """Write the files of a setup to a new folder; WireError if a name leads out of it."""
    with new_folder(folder, several=True) as made:
        for name, contents in files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\0" in name or contents.dtype != torch.uint8:
                raise WireError(f"the setup of a run holds {name!r}, which cannot be a file of it")
            target = made / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(contents.numpy().tobytes())


def open_worker(
    folder: Path, corpus: Corpus, device: str, states: ClientStates | None, progress: Progress | None = None
) -> SpeechWorker:
    """Return the worker of a site for a run; features that are missing are computed."""
    refuse_imports(json.loads((folder / "model.json").read_text()))
    settings = config.from_dict(SetupSettings, json.loads((folder / SETTINGS).read_text()))
    chosen = choose_device(device)
    recognizer = Recognizer.load(folder)
    store = compute_features(corpus, recognizer.blueprint.frontend, 1, progress)
    clients = BySpeaker()(store, np.arange(len(store)), settings.seed)
    if hidden := [clients[client] for client in settings.unlabelled if client in clients]:
        store = store.without_texts(np.concatenate(hidden))
    trained, held_out = hold_out(clients, settings.held_out, settings.seed)
    parameters = dict(recognizer.model.named_parameters())
    base = {name: parameters[name].detach().to(chosen, copy=True) for name in settings.base}
    options = (settings.augment, chosen, settings.bfloat16)
    runtime = ClientRuntime(store, recognizer.tokens, recognizer.model, base, *options)
    if states is not None:
        states.renew_lost = settings.renew_lost_states
    kind = StackedWorker if settings.stacked and chosen.type == "cuda" else SpeechWorker
    return kind(runtime, trained, states, held_out)


def refuse_imports(settings: Any) -> None:
    """Refuse settings that name a class by its module: a server must not choose what a site imports."""
    words = [*settings, *settings.values()] if isinstance(settings, Mapping) else settings
    for word in words if isinstance(words, list) else [words]:
        if isinstance(word, Mapping | list):
            refuse_imports(word)
        elif isinstance(word, str) and re.fullmatch(r"[\w.]+:[\w.]+", word):
            raise WireError(f"the setup of a run names the class {word!r}: sites take registered names only")
