"""A client: its utterances, its state and a model. None of these leaves the client."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antiphon.clients import cpu_products
from antiphon.clients.precision import check_precision, tf32
from antiphon.clients.train import local_sgd, mean_loss
from antiphon.core import Tensors, Unusable
from antiphon.data.batches import Batch, Feeder, Utterances, feeder, padded_tokens, plan_batches, to_device
from antiphon.data.tokens import Tokens
from antiphon.models.model import Model
from antiphon.models.noise import SpecAugment, utterance_keys
from antiphon.models.reduced import reduced
from antiphon.seeding import derive
from antiphon.tasks.local_training import LocalSteps, LocalTraining, Trained
from antiphon.tasks.submodel import Submodel, shrink


@dataclass(frozen=True)
class WeightedTranscript:
    """A hypothesis for an utterance: tokens, and their probability among the hypotheses."""

    tokens: tuple[int, ...]
    weight: float


WeightedTranscripts = Mapping[int, tuple[WeightedTranscript, ...]]  # by utterance


@dataclass(frozen=True)
class PseudoLabels:
    """Labels of utterances without texts; `stats` go into the client's report."""

    texts: WeightedTranscripts = field(default_factory=dict)
    stats: Mapping[str, float] = field(default_factory=dict)


class ClientRuntime:
    """What the clients of one process share: features, tokens, and one model whose weights are replaced.

    `base` are the parameters at the start of the run. A task's tensors replace them; in subspace training the
    others keep these values. Parameters of the model that `base` lacks are constants. `precision` is that of
    matrix products in training ([precision.py](precision.py)).
    """

    def __init__(
        self,
        store: Utterances,
        tokens: Tokens,
        model: Model,
        base: Tensors,
        augment: SpecAugment | None = None,
        device: torch.device | str = "cpu",
        precision: str = "float32",
    ) -> None:
        self.store, self.tokens, self.augment = store, tokens, augment
        self.device, self.precision = torch.device(device), precision
        check_precision(precision, self.device)
        self._fits = np.full(len(store), -1, dtype=np.int8)
        self.feed: Feeder = feeder(store, tokens.encode, self.device)
        self.model = model.to(self.device)
        self.parameters = {name: p for name, p in self.model.named_parameters() if name in base}
        self.base = base
        self.submodel = ""
        self.memory: dict[str, Any] = {}  # caches of views in this process
        self._small: ClientRuntime | None = None
        self.load(base)

    def with_submodel(self, submodel: str) -> ClientRuntime:
        """Return this runtime with a submodel of its model; the last one is cached."""
        if submodel == self.submodel:
            return self
        if self._small is None or self._small.submodel != submodel:
            units = Submodel.read(submodel)
            self._small = None  # free its memory first
            small = copy.copy(self)
            small.submodel, small.base, small.memory = submodel, shrink(self.base, units), {}
            small.model = reduced(self.model, units)
            small.parameters = {n: p for n, p in small.model.named_parameters() if n in small.base}
            self._small = small
        return self._small

    def load(self, tensors: Tensors) -> list[Tensor]:
        """Set the model to the base with these tensors; return their parameters, ready for training."""
        unknown = sorted(tensors.keys() - self.parameters.keys())
        if unknown:
            raise ValueError(
                f"the model has no parameter {unknown[0]!r} ({len(unknown)} unknown in the task)"
            )
        with torch.no_grad():
            values = [tensors.get(name, self.base[name]) for name in self.parameters]
            torch._foreach_copy_(list(self.parameters.values()), values)
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(name in tensors)
        return [self.parameters[name] for name in tensors]

    def fits(self, indices: np.ndarray) -> np.ndarray:
        """Return which utterances have a text, and enough frames for it; computed once for each."""
        for index in indices[self._fits[indices] < 0].tolist():
            tokens = self.tokens.encode(self.store.text(index))
            self._fits[index] = self.model.fits(int(self.store.num_frames[index]), tokens)
        return self._fits[indices] == 1

    def with_labels(self, batch: Batch, transcripts: WeightedTranscripts) -> Batch:
        """Return the batch with hypotheses for utterances that have them; the others keep their text."""
        if not any(index in transcripts for index in batch.indices):
            return batch
        rows = [transcripts.get(index) or self._transcript(index) for index in batch.indices]
        num_texts = max(len(row) for row in rows)
        padding = [WeightedTranscript((), 0.0)] * num_texts
        flat = [transcript for row in rows for transcript in (*row, *padding[len(row) :])]
        tokens, lengths = padded_tokens([transcript.tokens for transcript in flat])
        weights = torch.tensor([transcript.weight for transcript in flat], dtype=batch.features.dtype)
        return replace(
            batch,
            tokens=self.to_device(tokens),
            token_lengths=self.to_device(lengths),
            weights=self.to_device(weights),
        )

    def _transcript(self, index: int) -> tuple[WeightedTranscript, ...]:
        """Return the text of an utterance as its only hypothesis; −1 is a placeholder without text."""
        tokens = self.tokens.encode(self.store.text(index)) if index >= 0 else []
        return (WeightedTranscript(tuple(tokens), 1.0),)

    def keys(self, noise: Sequence[int], indices: np.ndarray) -> Tensor:
        """Return keys [n, B] on the device for the utterances [n, B] of n steps; see `models.noise`."""
        seeds = torch.tensor(noise, dtype=torch.int32)[:, None]
        return utterance_keys(self.to_device(seeds), self.to_device(torch.from_numpy(indices)))

    def autocast(self) -> torch.autocast:
        """Return a context for losses with products in bfloat16, if set; gradients follow from it."""
        enabled = self.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def products(self, batch: Batch) -> AbstractContextManager[None]:
        """Return a context for losses and gradients: products in TF32, if set; on a CPU the fast library."""
        if self.device.type == "cuda":
            return tf32(self.precision == "tf32")
        work = batch.features.shape[:-1].numel() * sum(p.numel() for p in self.parameters.values())
        return cpu_products.faster_products() if work >= cpu_products.ENOUGH_WORK else nullcontext()

    def to_device(self, tensor: Tensor) -> Tensor:
        return to_device(tensor, self.device)

    def augmented(self, batch: Batch, keys: Tensor) -> Batch:
        if self.augment is None:
            return batch
        return replace(batch, features=self.augment(batch.features, batch.feature_lengths, keys))


@dataclass(frozen=True)
class Step:
    """A planned training step: utterances [B] of the store, and a seed of 31 bits for their noise."""

    indices: np.ndarray
    noise: int


@dataclass(frozen=True)
class Client:
    """One client: its utterances (indices into the store) and the runtime of its process.

    It never trains on the utterances in `held_out`; they score its personal model.
    """

    id: str
    indices: np.ndarray
    runtime: ClientRuntime
    labels: PseudoLabels = PseudoLabels()
    held_out: np.ndarray | None = None
    read_state: Callable[[], Mapping[str, Tensor]] = dict

    @cached_property
    def state(self) -> Mapping[str, Tensor]:
        """The tensors that the client stored in earlier rounds; read at first use."""
        return self.read_state()

    @property
    def base(self) -> Tensors:
        """The parameters at the start of the run."""
        return self.runtime.base

    def reduced_to(self, submodel: str) -> Client:
        """Return the client with a smaller model, and its state reduced in the same way."""
        units = Submodel.read(submodel)
        return replace(
            self,
            runtime=self.runtime.with_submodel(submodel),
            read_state=lambda: shrink(dict(self.state), units),
        )

    def train(self, steps: LocalSteps) -> Trained:
        """Take SGD steps on this client's utterances."""
        return local_sgd(self, steps)

    def mean_loss(self, params: Tensors) -> float:
        """Return the mean loss per token of these parameters on the client's utterances."""
        return mean_loss(self, params)

    @property
    def seconds(self) -> float:
        return float(self.runtime.store.seconds[self.indices].sum())

    @cached_property
    def usable(self) -> np.ndarray:
        """Utterances that can be trained on: with a text that fits, or with labels."""
        is_labelled = np.isin(self.indices, list(self.labels.texts))
        usable = self.indices[is_labelled | self.runtime.fits(self.indices)]
        if len(usable) == 0:
            raise Unusable(f"no usable utterance among {len(self.indices)}")
        return usable

    def steps(self, local: LocalTraining, round_seed: int) -> Iterator[Step]:
        """Yield the steps of a round; its seed and this client's name decide them.

        Batches depend on the client, their order only on the round: clients that are trained at the same time
        then have batches of similar shapes.
        """
        store, usable, seed = self.runtime.store, self.usable, derive(round_seed, self.id)
        grouping, order = np.random.default_rng(seed), np.random.default_rng(derive(round_seed, "order"))
        max_frames = int(local.batch_seconds * store.frames_per_second)
        if local.batch_seconds == 0:  # all utterances in one batch
            max_frames = int(store.num_frames[usable].max()) * len(usable)
        done = epoch = 0
        while done < local.steps if local.steps > 0 else epoch < local.epochs:
            batches = plan_batches(store.num_frames, usable, max_frames, grouping)
            for number in order.permutation(len(batches)):
                if local.steps > 0 and done == local.steps:
                    return
                yield Step(batches[number], derive(seed, done) & 0x7FFFFFFF)
                done += 1
            epoch += 1
