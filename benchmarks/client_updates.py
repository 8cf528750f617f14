"""Updates of clients by the real client code, for the attacks of who_spoke.py.

A small Conformer with CTC is trained on the seed speakers. An update is some SGD steps on a few utterances of
one other speaker, with dropout and masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import make_store
from torch import Tensor

from antiphon.algorithms.central import Central
from antiphon.algorithms.fedavg import FedAvg
from antiphon.clients.client import ClientRuntime
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Tensors
from antiphon.data.corpus import Corpus
from antiphon.data.frontends import OnnxEncoder
from antiphon.data.store import FeatureStore, compute_features
from antiphon.data.tokens import Characters, CharactersConfig
from antiphon.experiment.settings import Speakers
from antiphon.models.adapters import AdaptedConfig, LowRank
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.pools.local import LocalPool
from antiphon.recipes.single_algorithm import ENCODER_MASKS
from antiphon.server.schedules import Cosine
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import LocalTraining

LOCAL = LocalTraining(lr=0.5, steps=3, batch_seconds=60.0)
PARTS = {"full": ("*",), "low rank": ("*adapter_*",)}


@dataclass(frozen=True)
class Sizes:
    """How much is trained and tried."""

    dim: int = 64
    rounds: int = 8  # of central training, for the seed model
    steps: int = 50  # of such a round
    group: int = 3  # utterances of an update
    groups: int = 5  # updates of a speaker and session, at most
    singles: int = 3  # updates of one utterance, of a speaker and session
    draws: int = 5  # of the noise
    cohorts: int = 200  # of each size
    inversions: int = 5  # utterances
    inversion_steps: int = 200


QUICK = Sizes(16, 2, 1, 1, 3, 2, draws=1, cohorts=5, inversions=1, inversion_steps=3)


@dataclass(frozen=True)
class Speech:
    """Features, the seed model's utterances, and those of both sessions of each attacked speaker."""

    store: FeatureStore
    tokens: Characters
    seed: np.ndarray
    sessions: Mapping[str, tuple[np.ndarray, np.ndarray]]


def open_speech(corpus: Path, frontend: Path, processes: int) -> Speech:
    """Read a corpus; speakers without a second session are left out."""
    opened = Corpus.open(corpus)
    store = compute_features(opened, OnnxEncoder(str(frontend)), processes)
    groups = Speakers().groups(store)
    sessions = {}
    others = np.sort(np.concatenate([groups[name] for name in ("federated", "valid", "test")]))
    for code in np.unique(store.speaker_codes[others]):
        own = others[store.speaker_codes[others] == code]
        first, *more = (own[store.session_codes[own] == one] for one in np.unique(store.session_codes[own]))
        if more:
            sessions[store.speaker_names[code]] = (first, more[0])
    return Speech(store, CharactersConfig().fit([], opened.alphabet), groups["seed"], sessions)


def make_speech(folder: Path) -> Speech:
    """Return noise in place of speech, for --quick."""
    store = make_store(folder, 8, 6, (1.0, 1.5), 16)
    own = [np.flatnonzero(store.speaker_codes == code) for code in range(8)]
    sessions = {store.speaker_names[code]: (own[code][:3], own[code][3:]) for code in range(2, 8)}
    return Speech(store, CharactersConfig().fit([], " abcdefghijklmnopqrstuvwxyz'"), own[0], sessions)


def train_seed(speech: Speech, sizes: Sizes, seed: int) -> tuple[Any, Tensors]:
    """Return a model, and its parameters after central training on the seed speakers."""
    torch.manual_seed(seed)
    model = CtcConfig(ConformerConfig(dim=sizes.dim)).build(speech.store.dim, speech.tokens.size)
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    runtime = ClientRuntime(speech.store, speech.tokens, model, params, ENCODER_MASKS)
    pool = LocalPool(SpeechWorker(runtime, {"server/seed": speech.seed}))
    schedule = Cosine(sizes.rounds, final=0.02, warmup=1)
    central = Central(LocalTraining(lr=2e-3, steps=sizes.steps), schedule=schedule)
    state = central.init(params).with_seed(seed)
    for _ in range(sizes.rounds):
        state, _ = central.round(state, ["server/seed"], pool)
    return model, state.params


def client_updates(
    speech: Speech, model: Any, params: Tensors, part: str, clients: Mapping[str, np.ndarray], seed: int
) -> Iterator[Tensors]:
    """Yield what clients send, by the real client code."""
    algorithm = FedAvg(LOCAL, trainable=PARTS[part], weighting=Uniform())
    runtime = ClientRuntime(speech.store, speech.tokens, model, params, ENCODER_MASKS)
    task = algorithm.task(algorithm.init(params).with_seed(seed))
    for update in SpeechWorker(runtime, clients).run(task, list(clients)):
        if update.is_empty:
            raise ValueError(f"a client failed: {update.failures}")
        yield {name: tensor.clone() for name, tensor in update.mean.items()}


def with_adapters(speech: Speech, params: Tensors, sizes: Sizes, seed: int) -> tuple[Any, Tensors]:
    torch.manual_seed(seed)
    config = AdaptedConfig(CtcConfig(ConformerConfig(dim=sizes.dim)), LowRank(rank=8))
    model: Any = config.build(speech.store.dim, speech.tokens.size)
    return model, {name: params.get(name, p.detach().clone()) for name, p in model.named_parameters()}


def in_groups(speech: Speech, session: int, size: int, most: int) -> tuple[dict[str, np.ndarray], Tensor]:
    """Return clients of `size` utterances each, and the number of the speaker of each."""
    clients, labels = {}, []
    for number, (speaker, both) in enumerate(speech.sessions.items()):
        own = both[session]
        for place in range(min(most, len(own) // size)):
            clients[f"{speaker}/{session}/{place}"] = own[place * size : (place + 1) * size]
            labels.append(number)
    return clients, torch.tensor(labels)
