"""What marginals replace: a language model that clients train together on recognised text.

H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017, in
the protocol of Liu and Peng, 2020, §3.2 (`antiphon personalize`): the N-best lists of each client, in time
order, are split into T + 1 groups. A round of training comes before each group except the first. Clients
start from the server's model and train on the best first-pass texts of all groups so far, just as caches
count all words so far.

Group t is then decoded twice: with the server's model, and with each client's own model. The client's own
model is the server's after the same local training once more, on the device. Nothing of it is sent.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from antiphon.algorithms.fedavg import FedAvg
from antiphon.clients.client import ClientRuntime
from antiphon.clients.worker import SpeechWorker
from antiphon.core import ServerState, Tensors, Worker
from antiphon.data.tokens import Tokens
from antiphon.decoding.nbest import NBest
from antiphon.engine import Engine, Rounds
from antiphon.lm.neural_lm import NeuralLm
from antiphon.personalisation.schedule import cut
from antiphon.pools.local import LocalPool
from antiphon.records.journal import read


class Texts:
    """Texts as `Utterances` without sound: a client trains a language model as it trains any other model.

    A text has one frame of no values for each of its predictions (its tokens, and its end). A frame lasts one
    second, so `LocalTraining.batch_seconds` limits the predictions of a batch, padding included.
    """

    dim = 0
    frames_per_second = 1.0

    def __init__(self, texts: Sequence[str], tokens: Tokens) -> None:
        self._texts = tuple(texts)
        self.num_frames = np.array([len(tokens.encode(text)) + 1 for text in texts], dtype=np.int32)
        self.first_frame = np.cumsum([0, *self.num_frames], dtype=np.int64)
        self.frames = np.zeros((int(self.first_frame[-1]), 0), dtype=np.float16)
        self.seconds = self.num_frames.astype(np.float32)

    def __len__(self) -> int:
        return len(self._texts)

    def features(self, index: int) -> np.ndarray:
        """Frames without values: [frames, 0]."""
        return self.frames[self.first_frame[index] : self.first_frame[index + 1]]

    def text(self, index: int) -> str:
        return self._texts[index]


@dataclass
class FineTuned:
    """ln p of all hypotheses of all lists in a row, by the model at the time each list was decoded.

    models: the server's after the last round ("shared") and each client's own (by its name).
    bytes_down, bytes_up and seconds (processor time): totals over all clients and rounds.
    """

    shared: np.ndarray
    personal: np.ndarray
    models: dict[str, Tensors] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0


class FineTuning:
    """Clients with lists in time order, and the model they start from, which is not changed."""

    def __init__(
        self, entries: Sequence[NBest], clients: Mapping[str, Sequence[int]], lm: NeuralLm, algorithm: FedAvg
    ) -> None:
        self.entries, self.clients, self.algorithm = entries, clients, algorithm
        model = copy.deepcopy(lm.model)
        base = {name: p.detach().clone() for name, p in model.named_parameters()}
        texts = Texts([entry.hypotheses[0].text for entry in entries], lm.tokens)
        self.runtime = ClientRuntime(texts, lm.tokens, model, base)
        self.scorer = NeuralLm(lm.config, lm.tokens, model)
        self.starts = np.cumsum([0, *(len(entry.hypotheses) for entry in entries)])

    def run(self, rounds: int) -> FineTuned:
        """Train T rounds, and decode each group of lists with the models of its time."""
        result = FineTuned(np.zeros(self.starts[-1]), np.zeros(self.starts[-1]))
        groups = {name: cut(places, rounds + 1) for name, places in self.clients.items()}
        state = self.algorithm.init(dict(self.runtime.base))
        with tempfile.TemporaryDirectory() as folder:
            for group in range(rounds + 1):
                so_far = {
                    name: np.array([*chain(*parts[:group])], np.int64) for name, parts in groups.items()
                }
                worker = SpeechWorker(self.runtime, so_far)
                if group > 0:
                    state = self._train(Path(folder), group, worker, result)
                result.models["shared"] = state.params
                for name, parts in groups.items():
                    rows, scores = self._score(parts[group], state.params)
                    result.shared[rows] = result.personal[rows] = scores
                    if group > 0:
                        result.models[name] = self.personal(state, worker, name)
                        _, result.personal[rows] = self._score(parts[group], result.models[name])
        return result

    def _train(self, folder: Path, round: int, worker: Worker, result: FineTuned) -> ServerState:
        """Run the engine for one more round, on the texts that the clients have by now."""
        rounds = Rounds(total=round, cohort=len(self.clients), valid_every=0)
        engine = Engine(self.algorithm, LocalPool(worker), list(self.clients), rounds, folder, seed=0)
        began = time.process_time()
        state = engine.run(dict(self.runtime.base), resume=round > 1).state
        result.seconds += time.process_time() - began
        entry = read(folder / "journal.jsonl")[-1]
        result.bytes_down += entry["bytes_down"]
        result.bytes_up += entry["bytes_up"]
        return state

    def personal(self, state: ServerState, worker: Worker, client: str) -> Tensors:
        """The server's model after the client's own steps; unchanged if there is nothing to train on."""
        (update,) = worker.run(self.algorithm.task(state), [client])
        return {name: p - update.mean[name] if name in update.mean else p for name, p in state.params.items()}

    def _score(self, places: Sequence[int], params: Tensors) -> tuple[np.ndarray, np.ndarray]:
        """The hypotheses of these lists, as rows, and their ln p."""
        rows = [np.arange(self.starts[place], self.starts[place + 1]) for place in places]
        texts = [hypothesis.text for place in places for hypothesis in self.entries[place].hypotheses]
        self.runtime.load(params)
        return np.concatenate([np.zeros(0, dtype=np.int64), *rows]), self.scorer.score_sentences(texts)
