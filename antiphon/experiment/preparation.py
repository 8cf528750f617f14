"""Preparation of an experiment: the device, the corpus with its features, and the clients of every run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from antiphon.algorithms.rehearsal import SERVER_CLIENT
from antiphon.clients.client import ClientRuntime
from antiphon.clients.faults import SimulatedFaults
from antiphon.clients.precision import check_precision
from antiphon.clients.simulated_clock import SimulatedClock
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.states import ClientStates
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Pool, Tensors, Worker
from antiphon.data.corpus import Corpus
from antiphon.data.corruption.corrupted_clients import CorruptedClients, corrupted_features
from antiphon.data.store import FeatureStore, Progress, compute_features
from antiphon.data.tokens import Tokens
from antiphon.engine import initial_state
from antiphon.experiment.elsewhere import Elsewhere
from antiphon.experiment.run_clock import check_clock, trains_on_server
from antiphon.experiment.settings import Experiment, Run
from antiphon.experiment.starting import check_start
from antiphon.experiment.teaching import check_labels, unlabelled_clients
from antiphon.models.model import Model
from antiphon.models.reduced import structure_of
from antiphon.models.torch_device import find_device
from antiphon.pools.process_group import ProcessGroup, SingleProcess
from antiphon.pools.recording import Faults, no_faults
from antiphon.recognizer import Blueprint, Recognizer
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.seeding import derive
from antiphon.server.run_context import RunContext, parts_of
from antiphon.server.run_context import prepare as prepare_algorithm
from antiphon.tasks.prunable_layers import Layer


@dataclass(frozen=True)
class Prepared:
    """An experiment with its data opened and every run checked."""

    experiment: Experiment
    store: FeatureStore
    groups: dict[str, np.ndarray]  # seed, federated, both, valid, test -> utterances
    corrupted: CorruptedClients
    clients: dict[str, dict[str, np.ndarray]]  # run -> client -> utterances it trains on
    held_out: dict[str, dict[str, np.ndarray]]  # run -> client -> utterances that score its own model
    valid_clients: dict[str, np.ndarray]  # validation speakers, as clients on the server -> utterances
    tokens: Tokens
    fresh: dict[str, Tensors]  # run -> parameters to be trained, of a new model
    device: torch.device
    elsewhere: Elsewhere | None = None  # the clients of runs on federated data, if they are on other machines

    def recognizer(self, name: str, submodel: str = "") -> Recognizer:
        """Return a new model of a run, or a submodel of it."""
        blueprint = self.experiment.blueprint(name).with_submodel(submodel)
        return Recognizer(blueprint, self.tokens, draw(self.experiment.seed, blueprint, self.tokens))

    def store_of(self, name: str) -> FeatureStore:
        """Return the speech as a run may see it: without the texts of clients that are not labelled."""
        clients = self.clients[name]
        unlabelled = unlabelled_clients(self.experiment.runs[name], list(clients), self.experiment.seed)
        hidden = [clients[client] for client in unlabelled]
        return self.store.without_texts(np.concatenate(hidden)) if hidden else self.store

    def server_texts(self) -> list[str]:
        """Return the texts of the server's own speakers."""
        return texts_of(self.store, self.groups["seed"])

    def expect(self, name: str, cohort: Sequence[str]) -> None:
        """Read the speech of the next cohort of a run while this one trains."""
        self.store.expect(np.concatenate([self.clients[name][client] for client in cohort]))

    def all_clients(self, name: str) -> dict[str, np.ndarray]:
        """Return all receivers of tasks: clients, validation speakers, and the server's own speech."""
        return {**self.clients[name], **self.valid_clients, SERVER_CLIENT: self.groups["seed"]}

    def seconds_of(self, name: str) -> Callable[[str], float]:
        """Return a function from a client to its seconds of audio."""
        clients = self.all_clients(name)
        return lambda client: float(self.store.seconds[clients[client]].sum())

    def is_away(self, name: str) -> bool:
        """Return whether the clients of a run are on other machines."""
        return self.elsewhere is not None and self.experiment.runs[name].data == "federated"

    def worker(self, name: str, runtime: ClientRuntime, states: ClientStates) -> SpeechWorker:
        """Return the worker for a run's clients in this process."""
        stacks = self.experiment.stacked and self.device.type == "cuda"
        kind = StackedWorker if stacks else SpeechWorker
        return kind(runtime, self.all_clients(name), states, self.held_out.get(name, {}))

    def pool(self, name: str, worker: Worker, group: ProcessGroup) -> Pool:
        """Return the pool of a run's clients, in all processes of the group."""
        pool = group.pool(worker, self.seconds_of(name))
        secure = self.experiment.runs[name].secure_aggregation
        return secure_pool(worker, pool, secure, name, self.experiment.seed) if secure else pool

    def faults(self, name: str) -> Faults:
        """Return the simulated faults of a run's clients."""
        unreliability, run = self.experiment.unreliability, self.experiment.runs[name]
        if trains_on_server(run) or not (unreliability.dropout or unreliability.deadline):
            return no_faults
        return SimulatedFaults(unreliability, self.seconds_of(name), self.experiment.seed)

    def clock(self, name: str) -> SimulatedClock | None:
        """Return the simulated clock of a run's clients; None if it has none."""
        run, settings = self.experiment.runs[name], self.experiment.clock
        if settings is None or self.is_away(name) or trains_on_server(run):
            return None
        return SimulatedClock(settings, self.seconds_of(name), self.experiment.seed)


def secure_pool(worker: Worker, pool: Pool, settings: SecureAggregation, run: str, seed: int) -> Pool:
    """Return a pool of simulated clients that mask their updates."""
    # Imported here: it needs the package cryptography, which is optional.
    from antiphon.secure_aggregation.secure_pool import SecurePool, in_process

    return SecurePool(in_process(worker, settings.max_share, seed), pool, settings, run)


def texts_of(store: FeatureStore, indices: np.ndarray) -> list[str]:
    return [store.text(index) for index in indices.tolist()]


def structure_in(recognizer: Recognizer) -> Sequence[Layer]:
    """Return the prunable layers of a model, or raise an error that says why it cannot be pruned."""
    recognizer.blueprint.whole_model()
    return structure_of(recognizer.model)


def choose_device(name: str) -> torch.device:
    """Return the device, with deterministic algorithms: resuming is exact on a GPU, too."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # As use_deterministic_algorithms(True), but without importing torch's compiler, which takes two seconds.
    torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.allow_tf32 = False  # with it, an LSTM would round to 10 bits, others to 23
    # Filling new memory would launch a kernel per allocation, and no code here reads unwritten memory.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 (unknown to mypy)
    return find_device(name)


def device_name(device: torch.device) -> str:
    """Return "cpu" or the name of the GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def prepare(
    experiment: Experiment,
    data: Path,
    device: str = "auto",
    num_processes: int = 1,
    progress: Progress | None = None,
    group: ProcessGroup | None = None,
    elsewhere: Elsewhere | None = None,
) -> Prepared:
    """Open the corpus, compute missing features, and check every run before any starts."""
    corpus = Corpus.open(data)
    chosen = choose_device(device)
    check_precision(experiment.precision, chosen)
    experiment.check_masks()

    def compute() -> None:
        open_speech(experiment, corpus, num_processes, progress)

    (group or SingleProcess()).on_rank_zero(compute)
    store, groups, corrupted = open_speech(experiment, corpus)
    server_texts = partial(texts_of, store, groups["seed"])
    tokens = experiment.tokens.fit(server_texts(), corpus.alphabet)
    drawn: dict[Blueprint, tuple[Recognizer, Tensors]] = {}
    split = experiment.speakers.valid
    valid = {f"valid/{speaker}": store.where(split, [speaker]) for speaker in store.speakers(split)}
    fresh, clients = {}, {}
    held_out: dict[str, dict[str, np.ndarray]] = {}
    for name, run in experiment.runs.items():
        try:
            blueprint = experiment.blueprint(name)
            if blueprint not in drawn:
                drawn[blueprint] = _drawn(experiment.seed, blueprint, tokens, chosen)
            recognizer, fresh[name] = drawn[blueprint]
            if elsewhere is not None and run.data == "federated":
                clients[name] = {client: np.empty(0, dtype=np.int64) for client in elsewhere.seconds}
            else:
                utterances = corrupted.without_dropped(_divided(run, store, groups, experiment.seed))
                utterances, held_out[name] = hold_out(utterances, run.held_out, experiment.seed)
                clients[name] = _repeated(utterances, groups, run.times, len(store))
            run.rounds.check(len(clients[name]))
            if run.secure_aggregation:
                run.secure_aggregation.check(run.rounds.cohort, (group or SingleProcess()).size)
            for part in parts_of(run.algorithm):
                if hasattr(part, "check_place"):
                    part.check_place(elsewhere is not None and run.data == "federated")
            teacher, _ = drawn[experiment.blueprint(run.teacher_run or name)]
            start = recognizer
            if run.start_folder:
                start = replace(recognizer, blueprint=check_start(run.start_folder, blueprint, tokens))
            context = RunContext(
                tuple(sorted(clients[name])),
                tuple(sorted(valid)),
                experiment.seed,
                run.rounds.total,
                cohort=run.rounds.cohort,
                has_server_speech=len(groups["seed"]) > 0,
                structure=partial(structure_in, start),
                resolve_labels=partial(check_labels, run, teacher, store, clients[name], server_texts),
            )
            initial_state(prepare_algorithm(run.algorithm, context), fresh[name])
        except ValueError as error:
            raise ValueError(f"run {name!r}: {error}") from error
    prepared = Prepared(
        experiment, store, groups, corrupted, clients, held_out, valid, tokens, fresh, chosen, elsewhere
    )
    for name, run in experiment.runs.items():
        if clock := prepared.clock(name):
            check_clock(clock, name, run, fresh[name], clients[name])
    return prepared


def _divided(
    run: Run, store: FeatureStore, groups: Mapping[str, np.ndarray], seed: int
) -> dict[str, np.ndarray]:
    """Return the utterances of each client of a run."""
    indices = np.concatenate([groups[group] for group in run.times])
    if len(indices) == 0:
        raise ValueError(f"no utterance for {run.data!r}: see speakers.seed_fraction")
    return run.clients(store, indices, seed)


def hold_out(
    clients: Mapping[str, np.ndarray], share: float, seed: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Split each client's utterances into those it trains on and those that score its own model."""
    if share == 0:
        return dict(clients), {}
    train, test = {}, {}
    for client, indices in clients.items():
        count = max(1, round(share * len(indices)))
        if count >= len(indices):
            raise ValueError(f"client {client!r} has only {len(indices)} utterances to hold out {share:g} of")
        order = np.random.default_rng(derive(seed, "held out", client)).permutation(len(indices))
        train[client], test[client] = np.sort(indices[order[count:]]), np.sort(indices[order[:count]])
    return train, test


def _repeated(
    clients: dict[str, np.ndarray], groups: dict[str, np.ndarray], times: dict[str, int], num_utterances: int
) -> dict[str, np.ndarray]:
    """Return the utterances of each client, repeated as often as `times` says for their group."""
    if all(number == 1 for number in times.values()):
        return clients
    repeats = np.ones(num_utterances, dtype=np.int64)
    for group, number in times.items():
        repeats[groups[group]] = number
    return {client: np.repeat(indices, repeats[indices]) for client, indices in clients.items()}


def open_speech(
    experiment: Experiment, corpus: Corpus, num_processes: int = 1, progress: Progress | None = None
) -> tuple[FeatureStore, dict[str, np.ndarray], CorruptedClients]:
    """Return features (missing ones are computed), the utterances of each group, and corrupted clients."""
    frontend, corruption = experiment.frontend, experiment.corruption
    clean = compute_features(corpus, frontend, num_processes, progress)
    groups = experiment.speakers.groups(clean)
    chosen = corruption.choose(clean, groups["federated"], experiment.seed)
    pool = groups["both"]
    store = corrupted_features(corpus, frontend, clean, corruption, chosen, pool, num_processes, progress)
    return store, groups, chosen


def _drawn(
    seed: int, blueprint: Blueprint, tokens: Tokens, device: torch.device
) -> tuple[Recognizer, Tensors]:
    """Return a new model, and those of its parameters that are to be trained."""
    model = draw(seed, blueprint, tokens)
    trained = {name: p.detach().to(device) for name, p in model.named_parameters() if p.requires_grad}
    return Recognizer(blueprint, tokens, model), trained


def draw(seed: int, blueprint: Blueprint, tokens: Tokens) -> Model:
    """Return a new model, which depends on the seed only; frozen parameters stay like this."""
    torch.manual_seed(derive(seed, "init"))
    return blueprint.build(tokens.size)
