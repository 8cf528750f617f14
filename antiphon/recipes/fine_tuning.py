"""What marginals replace: a language model that clients train together on what was recognised.

H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017, in
the protocol of Liu and Peng, 2020, §3.2 (`recipes.personalisation`): the lists of every client, in time
order, are cut into T + 1 groups. Before each group but the first there is a round in which clients train
from the server's model on the first pass's best texts of all groups so far, as caches count all that was
heard.

Group t is then decoded twice: with the server's model, and with each client's own, which is the server's
after the same local training once more, on the device, of which nothing is sent.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from antiphon.algorithms.fedavg import FedAvg
from antiphon.clients.client import Bench
from antiphon.clients.worker import SpeechWorker
from antiphon.core import ServerState, Tensors, Worker
from antiphon.data.texts import Texts
from antiphon.decoding.hypothesis import NBest
from antiphon.models.neural_lm import NeuralLm
from antiphon.observed import Observed
from antiphon.pools.local import LocalPool
from antiphon.recipes.personalisation import cut


@dataclass
class FineTuned:
    """ln p of all hypotheses of all lists in a row, by the model there was when each list was decoded.

    models: the server's after the last round ("shared") and every client's own (its name).
    bytes_down, bytes_up and seconds (of the processor): of all clients in all rounds together.
    """

    shared: np.ndarray
    personal: np.ndarray
    models: dict[str, Tensors] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0


class FineTuning:
    """Clients with lists in time order, and the model they begin with, which is left as it is."""

    def __init__(
        self, entries: Sequence[NBest], clients: Mapping[str, Sequence[int]], lm: NeuralLm, algorithm: FedAvg
    ) -> None:
        self.entries, self.clients, self.algorithm = entries, clients, algorithm
        model = copy.deepcopy(lm.model)
        base = {name: p.detach().clone() for name, p in model.named_parameters()}
        texts = Texts([entry.hypotheses[0].text for entry in entries], lm.tokens)
        self.bench = Bench(texts, lm.tokens, model, base)
        self.scorer = NeuralLm(lm.config, lm.tokens, model)
        self.starts = np.cumsum([0, *(len(entry.hypotheses) for entry in entries)])

    def run(self, rounds: int, progress: Callable[[int, int], None] = lambda done, total: None) -> FineTuned:
        """T rounds, and all lists decoded on the way."""
        found = FineTuned(np.zeros(self.starts[-1]), np.zeros(self.starts[-1]))
        groups = {name: cut(places, rounds + 1) for name, places in self.clients.items()}
        state = self.algorithm.init(dict(self.bench.base))
        for group in range(rounds + 1):
            heard = {name: np.array([*chain(*parts[:group])], np.int64) for name, parts in groups.items()}
            worker = SpeechWorker(self.bench, heard)
            if group > 0:
                state = self._round(state, worker, found)
            found.models["shared"] = state.params
            for name, parts in groups.items():
                rows, scores = self._scored(parts[group], state.params)
                found.shared[rows] = found.personal[rows] = scores
                if group > 0:
                    found.models[name] = self.personal(state, worker, name)
                    _, found.personal[rows] = self._scored(parts[group], found.models[name])
            progress(group + 1, rounds + 1)
        return found

    def _round(self, state: ServerState, worker: Worker, found: FineTuned) -> ServerState:
        cohort = sorted(self.clients)
        pool = Observed(LocalPool(worker), cohort, 1, lambda client: None, threading.Event())
        began = time.process_time()
        state, _ = self.algorithm.round(state, cohort, pool)
        found.seconds += time.process_time() - began
        found.bytes_down += pool.bytes_down
        found.bytes_up += pool.bytes_up
        return state

    def personal(self, state: ServerState, worker: Worker, client: str) -> Tensors:
        """The server's model after the client's own steps; as it is if there is nothing to train on."""
        (update,) = worker.run(self.algorithm.task(state), [client])
        return {name: p - update.mean[name] if name in update.mean else p for name, p in state.params.items()}

    def _scored(self, places: Sequence[int], params: Tensors) -> tuple[np.ndarray, np.ndarray]:
        """The hypotheses of these lists, as rows, and their ln p."""
        rows = [np.arange(self.starts[place], self.starts[place + 1]) for place in places]
        texts = [hypothesis.text for place in places for hypothesis in self.entries[place].hypotheses]
        self.bench.load(params)
        return np.concatenate([np.zeros(0, dtype=np.int64), *rows]), self.scorer.score_sentences(texts)
