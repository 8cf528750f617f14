"""A tiny real world: a corpus of spoken tones, features, tokens, models, clients, and every algorithm.

Every letter is a tone, so the speech is learnable, takes no synthesiser, and is the same everywhere.
A new algorithm is one line in ALGORITHMS or BASES, a new wrapper one line in WRAPPERS, a new pool one line in
POOLS: `tests/conformance` does the rest.
"""

from __future__ import annotations

import json
import threading
import wave
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cautious import Cautious, Twice
from twins import Twins

from antiphon.algorithms.afl import Afl
from antiphon.algorithms.attacked import Attacked
from antiphon.algorithms.central import Central
from antiphon.algorithms.compressed import Compressed
from antiphon.algorithms.dga_rl import DgaRl
from antiphon.algorithms.dga_rl_policy import PerCohort
from antiphon.algorithms.ditto import Ditto
from antiphon.algorithms.fedasync import FedAsync
from antiphon.algorithms.fedavg import FedAvg, bmuf, dga, fedavg, fedsgd, hierarchical
from antiphon.algorithms.fedbuff import FedBuff
from antiphon.algorithms.feddyn import FedDyn
from antiphon.algorithms.federated_dropout import DeviceClass, FederatedDropout
from antiphon.algorithms.geometric_median import GeometricMedian
from antiphon.algorithms.krum import Krum
from antiphon.algorithms.norm_bounding import NormBounding
from antiphon.algorithms.personal_layers import PersonalLayers
from antiphon.algorithms.private import Private
from antiphon.algorithms.pruning import FederatedPruning
from antiphon.algorithms.q_fedavg import QFedAvg
from antiphon.algorithms.rehearsal import SERVER_CLIENT, Rehearsed
from antiphon.algorithms.scaffold import Scaffold
from antiphon.algorithms.self_training import CurrentModel, MovingAverage, SelfTrained
from antiphon.algorithms.trimmed_mean import TrimmedMean
from antiphon.algorithms.validation_wer import ValidationWer
from antiphon.clients.client import ClientRuntime
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.states import ClientStates
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Algorithm, Failure, Pool, Task, Tensors, Update, Worker
from antiphon.data.batches import Batch, Feeder
from antiphon.data.corpus import Corpus
from antiphon.data.frontends import Filterbank
from antiphon.data.importing.conversion import import_corpus
from antiphon.data.partition import BySpeaker, Iid, Partition
from antiphon.data.store import FeatureStore, compute_features
from antiphon.data.tokens import Characters
from antiphon.engine import sample_cohort
from antiphon.models.blstm import BlstmConfig
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.las import LasConfig
from antiphon.models.noise import SpecAugment
from antiphon.models.reduced import structure_of
from antiphon.models.transducer import TransducerConfig
from antiphon.pools.local import LocalPool
from antiphon.pools.recording import RecordingPool
from antiphon.privacy.participation import RoundRobin
from antiphon.seeding import derive
from antiphon.server.clipping import ClipLayersRelative
from antiphon.server.optimizers import Adagrad, Adam, Lamb, Lars, Sgd, Yogi
from antiphon.server.run_context import RunContext, prepare
from antiphon.server.schedules import Cosine, Step
from antiphon.server.weighting import ByNorm, Uniform
from antiphon.tasks.client_optimizers import ClientAdamW, ClientMomentum
from antiphon.tasks.client_storage import Quantised
from antiphon.tasks.codecs.low_rank import LowRank
from antiphon.tasks.codecs.random_projection import RandomProjection
from antiphon.tasks.codecs.small_floats import SmallFloats
from antiphon.tasks.codecs.stochastic_rounding import StochasticRounding
from antiphon.tasks.codecs.top_k import TopK
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.pseudo_labels import Labelling
from antiphon.tasks.update_clipping import EachLayerByNorm, WholeUpdate

RATE = 16000
LETTERS = "abcde "
SPLITS = {"pool": 8, "heldout": 2, "test": 2}
FRONTEND = Filterbank(dim=8)
SEED = 7

MODELS = {
    "ctc": CtcConfig(ConformerConfig(dim=16, num_layers=1, num_heads=2, kernel_size=3, stack=2)),
    "las": LasConfig(
        BlstmConfig(dim=6, num_layers=1, stack=3),
        decoder_dim=8,
        decoder_layers=1,
        attention_dim=6,
        location_channels=2,
        location_width=3,
    ),
    "transducer": TransducerConfig(
        ConformerConfig(dim=16, num_layers=1, num_heads=2, kernel_size=3, stack=2),
        prediction_dim=8,
        joint_dim=8,
    ),
}
MASKS = SpecAugment(num_time_masks=1, time_width=6, num_frequency_masks=1, frequency_width=2)

# One line a pool: how to carry tasks to a worker.
POOLS: dict[str, Callable[[Worker], Pool]] = {
    "local": LocalPool,
    "two processes": Twins,
    "stacked": lambda worker: LocalPool(stacked(worker)),
}
# What another way of sharing clients out may change: shares that are folded apart round differently.
ROUNDING = {"local": 0.0, "two processes": 1e-6, "stacked": 1e-5}


# --- Speech ---------------------------------------------------------------------------------------


def tones(text: str, pitch: float, generator: np.random.Generator) -> np.ndarray:
    """A text as 16-bit samples: 60 ms of one tone for each letter, silence for a space, a little noise."""
    time = np.arange(RATE * 60 // 1000) / RATE
    heights = [300.0 * 1.6 ** LETTERS.index(letter) * pitch for letter in text]
    sound = np.concatenate(
        [
            np.sin(2 * np.pi * hertz * time) * (letter != " ")
            for letter, hertz in zip(text, heights, strict=True)
        ]
    )
    noisy = 0.4 * sound + 0.01 * generator.standard_normal(len(sound))
    return (noisy * 32767).astype(np.int16)


def write_wav(path: Path, samples: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())
    return path


def write_source(folder: Path, num_utterances: int = 5) -> Path:
    """What a user has: a manifest.jsonl and WAV files. Speakers differ in pitch and amount of speech."""
    folder.mkdir(parents=True)
    rows = []
    speakers = [split for split, count in SPLITS.items() for _ in range(count)]
    for number, split in enumerate(speakers):
        speaker, generator = f"s{number:02d}", np.random.default_rng(number)
        pitch = float(generator.uniform(0.9, 1.1))
        for utterance in range(num_utterances - number % 2):
            text = "".join(generator.choice(list(LETTERS[:-1]), generator.integers(2, 4)))
            text += " " + "".join(generator.choice(list(LETTERS[:-1]), generator.integers(1, 4)))
            samples = tones(text, pitch, generator)
            id = f"{speaker}-{utterance}"
            write_wav(folder / f"{id}.wav", samples)
            rows.append({"id": id, "path": f"{id}.wav", "split": split, "speaker": speaker, "text": text})
            rows[-1]["duration"] = len(samples) / RATE
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


# --- Algorithms -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An algorithm and the clients it is for: `cohort` of them are drawn each round."""

    algorithm: Algorithm[Any]
    clients: Partition = BySpeaker()
    cohort: int = 3
    labelled: bool = True  # whether all its clients have texts; if not, the first alone
    magnifies: float = 1.0  # rounding of what clients send, in the state after


LOCAL = LocalTraining(lr=0.05, epochs=1, batch_seconds=1.5)
HEARD = Labelling(num_hypotheses=3, width=4, temperature=2.0)
STRUCTURE = structure_of(MODELS["ctc"].build(FRONTEND.dim, len(LETTERS) + 1))  # type: ignore[arg-type]

# One line a configuration.
ALGORITHMS: dict[str, Case] = {
    "fedsgd": Case(fedsgd()),
    "fedavg": Case(fedavg(LOCAL)),
    "fedavg with steps": Case(fedavg(replace(LOCAL, steps=3))),
    "client momentum": Case(fedavg(replace(LOCAL, optimizer=ClientMomentum()))),
    "client adamw": Case(hierarchical(replace(LOCAL, lr=1e-3, optimizer=ClientAdamW()), Sgd(lr=0.5))),
    "client storage": Case(fedavg(replace(LOCAL, storage=Quantised(3, 7, share=0.5)))),
    "fedprox": Case(fedavg(replace(LOCAL, proximal=0.1))),
    "scheduled": Case(FedAvg(LOCAL, client_schedule=Step(1), server_schedule=Cosine(8, warmup=2))),
    "hierarchical sgd": Case(hierarchical(LOCAL, Sgd(lr=0.5))),
    "hierarchical momentum": Case(hierarchical(LOCAL, Sgd(lr=0.5, momentum=0.9, nesterov=True))),
    "hierarchical adam": Case(hierarchical(LOCAL, Adam())),
    "hierarchical yogi": Case(hierarchical(LOCAL, Yogi())),
    "hierarchical adagrad": Case(hierarchical(LOCAL, Adagrad())),
    "hierarchical lamb": Case(hierarchical(LOCAL, Lamb(weight_decay=0.01))),
    "hierarchical lars": Case(hierarchical(LOCAL, Lars(weight_decay=0.01))),
    "bmuf": Case(bmuf(LOCAL), clients=Iid(4), cohort=4),
    "dga": Case(dga(LOCAL, beta=2.0)),
    "fedbuff": Case(FedBuff(dga(LOCAL, beta=2.0), buffer=3)),
    "fedasync": Case(FedAsync(LOCAL), cohort=1),  # one answer is a round
    "by norm": Case(FedAvg(LOCAL, weighting=ByNorm(), server=Adam())),
    # Its memory holds losses over their spread in the cohort.
    "dga rl": Case(DgaRl(dga(LOCAL, beta=2.0), validation=("valid/s08", "valid/s09")), magnifies=10.0),
    "dga rl, per cohort": Case(
        DgaRl(dga(LOCAL, beta=2.0), PerCohort(num_clients=5), validation=("valid/s08", "valid/s09")),
        magnifies=10.0,
    ),
    "geometric median, clipped": Case(
        GeometricMedian(FedAvg(LOCAL, clipping=ClipLayersRelative(0.001)), iterations=1)
    ),
    "trimmed mean": Case(TrimmedMean(hierarchical(LOCAL), trim=0.3), cohort=4),
    # Of three updates, the nearest two have equal scores.
    "krum": Case(Krum(hierarchical(LOCAL), num_averaged=2), cohort=5),
    # The tiny models all have a WER of 1, which would give equal weights: see the unit tests for others.
    "validation wer": Case(
        ValidationWer(hierarchical(LOCAL), validation=("valid/s08", "valid/s09")), cohort=3
    ),
    "norm bounding": Case(NormBounding(FedAvg(LOCAL), bound=0.05)),
    "rehearsed": Case(Rehearsed(dga(LOCAL), LocalTraining(lr=0.02, steps=2, batch_seconds=1.5))),
    "pruned": Case(FederatedPruning(dga(LOCAL), mask_every=1, fine_tune_from=3, structure=STRUCTURE)),
    "subspace": Case(FedAvg(LOCAL, server=Adam(), trainable=("encoder.*",))),
    "rehearsed subspace": Case(Rehearsed(FedAvg(LOCAL, trainable=("output.*",)), LocalTraining(steps=1))),
    "self-trained": Case(
        SelfTrained(
            Rehearsed(dga(LOCAL, beta=2.0), LocalTraining(steps=2)), HEARD, MovingAverage(0.5, update_every=2)
        ),
        labelled=False,
    ),
    "self-trained, rehearsed dga rl": Case(
        SelfTrained(
            Rehearsed(
                DgaRl(dga(LOCAL, beta=2.0), validation=("valid/s08", "valid/s09")), LocalTraining(steps=1)
            ),
            HEARD,
            CurrentModel(update_every=2),
        ),
        labelled=False,
        magnifies=10.0,
    ),
    "private, clipped by norm": Case(
        Private(
            FedAvg(LOCAL, weighting=Uniform(), server=Sgd(lr=0.7), trainable=("encoder.*",)),
            1e4,
            clipping=EachLayerByNorm(0.3),
            cohorts=RoundRobin(1),
            noise_multiplier=0.1,
            cohort=5.0,
            rounds=8,
            simulated=True,
        )
    ),
    "compressed": Case(
        Compressed(FedAvg(LOCAL, weighting=Uniform()), StochasticRounding(bits=4), StochasticRounding(bits=8))
    ),
    "compressed differences": Case(
        Compressed(fedavg(LOCAL), StochasticRounding(bits=4), StochasticRounding(bits=4), from_start=True)
    ),
    "small floats": Case(Compressed(fedavg(LOCAL), SmallFloats(2, 3), SmallFloats(3, 4))),
    "projected": Case(Compressed(fedavg(LOCAL), RandomProjection(share=0.5))),
    "central subspace": Case(
        Central(LocalTraining(lr=1e-3, steps=2, batch_seconds=4.0), trainable=("output.*",)), Iid(1), cohort=1
    ),
    "central": Case(Central(LocalTraining(lr=1e-3, steps=3, batch_seconds=4.0)), clients=Iid(1), cohort=1),
}
FEDERATED = {name: case for name, case in ALGORITHMS.items() if case.cohort > 1}

# What an algorithm learns before a run begins.
VALID = ("valid/s08", "valid/s09")
CLIENTS = tuple(f"speaker/s{number:02d}" for number in range(SPLITS["pool"]))
CONTEXT = RunContext(CLIENTS, VALID, structure=lambda: STRUCTURE)
SHORT = LocalTraining(lr=0.02, steps=1, batch_seconds=1.5)

# One line an algorithm, one line a wrapper: all combinations of one of each are run.
BASES: dict[str, Algorithm[Any]] = {
    "fed_avg": dga(LOCAL, beta=2.0),
    "dga_rl": DgaRl(dga(LOCAL, beta=2.0)),
    "geometric_median": GeometricMedian(hierarchical(LOCAL), iterations=1),
    "scaffold": Scaffold(LOCAL, server=Sgd(lr=0.7)),
    "q_fed_avg": QFedAvg(1.0, LOCAL),
    "fed_dyn": FedDyn(0.1, LOCAL),
    "afl": Afl(0.5, LOCAL, server=Sgd(lr=0.7)),
    "cautious": Cautious(LOCAL),
    "fed_buff": FedBuff(dga(LOCAL, beta=2.0), buffer=3),
    "even": hierarchical(LOCAL, Sgd(lr=0.7)),
}
WRAPPERS: dict[str, Callable[[Any], Algorithm[Any]]] = {
    "rehearsed": lambda inner: Rehearsed(inner, SHORT),
    "self_trained": lambda inner: SelfTrained(inner, HEARD, MovingAverage(0.5)),
    "federated_pruning": lambda inner: FederatedPruning(inner, mask_every=1, fine_tune_from=2),
    "personal_layers": lambda inner: PersonalLayers(inner, ("output.*",)),
    "ditto": lambda inner: Ditto(inner, SHORT, strength=0.5),
    "federated_dropout": lambda inner: FederatedDropout(
        inner, {"weak": DeviceClass(0.4, keep=0.6), "weakest": DeviceClass(0.3, keep=0.3)}, exclude=()
    ),
    "attacked": lambda inner: Attacked(inner, fraction=0.3, scale=-1.0, loss=0.5),
    "twice": Twice,
    "compressed": lambda inner: Compressed(inner, TopK(share=0.2), StochasticRounding(bits=8)),
    "differences": lambda inner: Compressed(inner, None, StochasticRounding(bits=8), from_start=True),
    "factored": lambda inner: Compressed(inner, LowRank(rank=2)),
    # All clients take part in every round, so that any cohort is a planned one.
    "private": lambda inner: Private(
        inner,
        1e4,
        clipping=WholeUpdate(0.3),
        cohorts=RoundRobin(1),
        noise_multiplier=0.1,
        cohort=5.0,
        rounds=8,
        simulated=True,
    ),
}
# One client has no bounded influence on a round of these, which `private` refuses. They ask a client twice,
# or weigh it by what it reports.
NOT_PRIVATE = (
    "fed_avg",
    "dga_rl",
    "geometric_median",
    "scaffold",
    "q_fed_avg",
    "fed_dyn",
    "afl",
    "cautious",
    "fed_buff",
)
NESTS = (  # outermost first
    "federated_pruning rehearsed scaffold",
    "federated_pruning personal_layers fed_avg",
    "federated_pruning personal_layers fed_dyn",
    "self_trained ditto cautious",
    "rehearsed self_trained q_fed_avg",
    "twice personal_layers scaffold",
    "ditto twice rehearsed dga_rl",
    "rehearsed personal_layers fed_buff",
    "self_trained personal_layers rehearsed scaffold",
    "federated_pruning self_trained rehearsed cautious",
    "private self_trained personal_layers ditto rehearsed even",
    "federated_pruning compressed scaffold",
    "federated_dropout compressed personal_layers scaffold",
    "federated_pruning personal_layers factored fed_avg",
    "compressed self_trained ditto rehearsed cautious",
    "private personal_layers compressed even",
    "private differences personal_layers rehearsed even",
)


def combined(names: str) -> Case:
    """The case of wrappers and a base by their names, the outermost first."""
    *wrappers, base = names.split()
    algorithm = BASES[base]
    for wrapper in reversed(wrappers):
        algorithm = WRAPPERS[wrapper](algorithm)
    # DGA-RL's memory holds losses over their spread in the cohort.
    magnifies = 10.0 if base == "dga_rl" else 1.0
    labelled = "self_trained" not in wrappers
    return Case(prepare(algorithm, CONTEXT), labelled=labelled, magnifies=magnifies)


COMBINATIONS = {
    names: combined(names)
    for names in (*BASES, *(f"{wrapper} {base}" for wrapper in WRAPPERS for base in BASES), *NESTS)
    if not (names.startswith("private ") and names.removeprefix("private ") in NOT_PRIVATE)
}
# Each base and each wrapper at least once, for pools that take longer.
COVERING = (
    "scaffold",
    "fed_dyn",
    "cautious",
    "rehearsed dga_rl",
    "ditto geometric_median",
    "attacked fed_avg",
    "personal_layers q_fed_avg",
    "personal_layers afl",
    "twice scaffold",
    "fed_buff",
    "self_trained personal_layers rehearsed scaffold",
    "federated_pruning rehearsed scaffold",
    "private even",
    "compressed scaffold",
)


# --- The world ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """Speech that was imported, features of it, and whatever it takes to train on it."""

    corpus: Path
    store: FeatureStore
    tokens: Characters = field(default_factory=lambda: Characters(LETTERS))

    def params(self, model: str = "ctc", dtype: torch.dtype = torch.float32) -> Tensors:
        """A new model's parameters: the same every time."""
        first = _first_params(model, self.tokens.size)
        return {name: parameter.to(dtype, copy=True) for name, parameter in first.items()}

    def clients(self, partition: Partition = BySpeaker()) -> dict[str, np.ndarray]:
        return partition(self.store, self.store.where("pool"), SEED)

    def runtime(self, model: str = "ctc", masks: SpecAugment | None = MASKS) -> ClientRuntime:
        built = _built(model, self.tokens.size, dropout=0.1)
        return ClientRuntime(self.store, self.tokens, built, self.params(model), masks)

    def exact_runtime(self, model: str = "ctc") -> ClientRuntime:
        """In float64, without dropout and masks: for what must hold to the tenth digit."""
        built = _built(model, self.tokens.size, dropout=0.0).double()
        losses = built.losses
        built.losses = lambda batch: losses(replace(batch, features=batch.features.double()))  # type: ignore
        runtime = ClientRuntime(self.store, self.tokens, built, self.params(model, torch.float64))
        runtime.feed = Doubled(runtime.feed)
        return runtime

    def worker(
        self,
        clients: Mapping[str, np.ndarray],
        runtime: ClientRuntime | None = None,
        states: ClientStates | None = None,
        held_out: Mapping[str, np.ndarray] | None = None,
    ) -> SpeechWorker:
        """Does tasks for clients, for validation speakers and for the server's own data."""
        valid = {f"valid/{s}": self.store.where("heldout", [s]) for s in self.store.speakers("heldout")}
        everyone = {**clients, **valid, SERVER_CLIENT: self.store.where("test")}
        return SpeechWorker(runtime or self.runtime(), everyone, states, held_out or {})

    def worker_for(self, case: Case, model: str = "ctc", states: ClientStates | None = None) -> SpeechWorker:
        """The worker of a case; where not all clients are labelled, only the first one has texts."""
        clients = self.clients(case.clients)
        world = self if case.labelled else self.without_texts(sorted(clients)[1:])
        return world.worker(clients, world.runtime(model), states)

    def without_texts(self, clients: Sequence[str]) -> World:
        """The same world, in which nobody wrote down what these speakers said."""
        indices = [index for name in clients for index in self.clients()[name].tolist()]
        return replace(self, store=self.store.without_texts(np.array(indices, dtype=np.int64)))


def _built(model: str, num_tokens: int, dropout: float) -> Any:
    config = MODELS[model]
    config = replace(config, encoder=replace(config.encoder, dropout=dropout))  # type: ignore
    config = replace(config, dropout=dropout) if not isinstance(config, CtcConfig) else config
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)  # `torch.manual_seed` reads the source of the whole stack
        return config.build(FRONTEND.dim, num_tokens)


@cache
def _first_params(model: str, num_tokens: int) -> Tensors:
    return {name: p.detach() for name, p in _built(model, num_tokens, dropout=0.1).named_parameters()}


@dataclass(frozen=True)
class Doubled:
    """Feeds in float64, so that what differs is the algorithm and not the rounding."""

    feed: Feeder

    def __call__(self, places: np.ndarray) -> Batch:
        batch = self.feed(places)
        return replace(batch, features=batch.features.double())

    def one_by_one(self, plan: Iterable[np.ndarray]) -> Iterator[Batch]:
        return map(self, plan)


def stacked(worker: Worker) -> Worker:
    """The same clients, trained at once."""
    if not isinstance(worker, SpeechWorker):
        return worker
    return StackedWorker(worker.runtime, worker.clients, worker.states, worker.held_out)


def make_world(folder: Path) -> World:
    import_corpus(write_source(folder / "source"), folder / "corpus")
    return World(folder / "corpus", compute_features(Corpus.open(folder / "corpus"), FRONTEND))


@dataclass(frozen=True)
class Broken:
    """A worker some of whose clients never answer."""

    worker: Worker
    broken: frozenset[str]

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for name in clients:
            if name in self.broken:
                yield Update.nothing(Failure(name, "broken on purpose"))
            else:
                yield from self.worker.run(task, [name])


def recording(pool: Pool, cohort: Sequence[str], round: int = 0) -> RecordingPool:
    """The pool of a round: it numbers the tasks, so that clients find the right version of their state."""
    return RecordingPool(pool, cohort, 1, lambda client: None, threading.Event(), round=round)


def run_rounds(case: Case, state: Any, clients: Sequence[str], pool: Pool, num: int) -> Any:
    """Run rounds as the engine does, but write no folder."""
    for _ in range(num):
        cohort = sample_cohort(sorted(clients), case.cohort, state.seed, state.round)
        state, _ = case.algorithm.round(state, cohort, recording(pool, cohort, state.round))
    return state


def start(case: Case, params: Tensors, seed: int = SEED) -> Any:
    return case.algorithm.init(params).with_seed(derive(seed, "run"))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes: 0 and −0 are not the same."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8)


def assert_same(left: Any, right: Any, path: str = "state", tolerance: float = 0.0) -> None:
    """Equal type by type and in the same order; tensors to the last bit, or within a tolerance."""
    assert type(left) is type(right), f"{path}: {type(left).__name__} and {type(right).__name__}"
    if isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape) == (right.dtype, right.shape), path
        same = (
            torch.allclose(left, right, 0.0, tolerance) if tolerance else torch.equal(bits(left), bits(right))
        )
        assert same, f"{path} differs by {(left - right).abs().max()}"
    elif hasattr(left, "__dataclass_fields__"):
        assert_same(vars(left), vars(right), path, tolerance)
    elif isinstance(left, dict):
        assert list(left) == list(right), f"{path}: {list(left)} and {list(right)}"
        for key in left:
            assert_same(left[key], right[key], f"{path}/{key}", tolerance)
    elif isinstance(left, tuple):
        assert len(left) == len(right), path
        for place, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_same(one, other, f"{path}/{place}", tolerance)
    else:
        assert left == right, path
