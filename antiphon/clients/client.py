"""A client: its utterances, and a model to work on. What is here never leaves the client."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
    """What may have been said: tokens, and how likely they are among the guesses for an utterance."""

    tokens: tuple[int, ...]
    weight: float


WeightedTranscripts = Mapping[
    int, tuple[WeightedTranscript, ...]
]  # utterance -> what may have been said in it


@dataclass(frozen=True)
class PseudoLabels:
    """What a client has in place of texts that nobody wrote; `stats` are told in its report."""

    texts: WeightedTranscripts = field(default_factory=dict)
    stats: Mapping[str, float] = field(default_factory=dict)


def check_precision(device: torch.device, bfloat16: bool) -> None:
    """Refuses what a device cannot do: not every CPU has LSTMs of 16 bits."""
    if bfloat16 and device.type != "cuda":
        raise ValueError(f"bfloat16 needs a GPU, and the device is {device}: set bfloat16=false")


class ClientRuntime:
    """What the clients of one process share: features, tokens, and one model whose weights are swapped.

    `base` are the parameters a run starts from. Those that do not travel in subspace training stay as
    they are there; a task's tensors are laid over them. A parameter of the model that `base` does not hold is
    frozen, a constant as much as the code. `bfloat16` trains with products of 16 bits.
    """

    def __init__(
        self,
        store: Utterances,
        tokens: Tokens,
        model: Model,
        base: Tensors,
        augment: SpecAugment | None = None,
        device: torch.device | str = "cpu",
        bfloat16: bool = False,
    ) -> None:
        self.store, self.tokens, self.augment = store, tokens, augment
        self.device, self.bfloat16 = torch.device(device), bfloat16
        check_precision(self.device, bfloat16)
        self._fits = np.full(len(store), -1, dtype=np.int8)
        self.feed: Feeder = feeder(store, tokens.encode, self.device)
        self.model = model.to(self.device)
        self.parameters = {name: p for name, p in self.model.named_parameters() if name in base}
        self.base = base
        self.submodel = ""
        self.memory: dict[
            str, Any
        ] = {}  # what views of tasks keep in this process; never needed for a result
        self._small: ClientRuntime | None = None
        self.load(base)

    def with_submodel(self, submodel: str) -> ClientRuntime:
        """This bench with what is kept of its model (`tasks.submodel`); it remembers the last one."""
        if submodel == self.submodel:
            return self
        if self._small is None or self._small.submodel != submodel:
            units = Submodel.read(submodel)
            self._small = None  # its memory first
            small = copy.copy(self)
            small.submodel, small.base, small.memory = submodel, shrink(self.base, units), {}
            small.model = reduced(self.model, units)
            small.parameters = {n: p for n, p in small.model.named_parameters() if n in small.base}
            self._small = small
        return self._small

    def load(self, tensors: Tensors) -> list[Tensor]:
        """Lays tensors over the base model; returns the parameters they went to, ready to be trained."""
        unknown = sorted(tensors.keys() - self.parameters.keys())
        if unknown:
            raise ValueError(
                f"the model has no parameter {unknown[0]!r} ({len(unknown)} unknown in the task)"
            )
        with torch.no_grad():
            torch._foreach_copy_(
                list(self.parameters.values()), [tensors.get(n, self.base[n]) for n in self.parameters]
            )
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(name in tensors)
        return [self.parameters[name] for name in tensors]

    def fits(self, indices: np.ndarray) -> np.ndarray:
        """Which utterances have a text that is not empty and frames enough to hold it; looked up once."""
        for index in indices[self._fits[indices] < 0].tolist():
            tokens = self.tokens.encode(self.store.text(index))
            self._fits[index] = self.model.fits(int(self.store.num_frames[index]), tokens)
        return self._fits[indices] == 1

    def with_labels(self, batch: Batch, transcripts: WeightedTranscripts) -> Batch:
        """The batch, with guesses for its utterances that have any; the others keep their one text."""
        if not any(index in transcripts for index in batch.indices):
            return batch
        rows = [
            transcripts[index] if index in transcripts else self._written(index) for index in batch.indices
        ]
        num_texts = max(len(row) for row in rows)
        # One that has fewer guesses is filled up with empty ones that do not count.
        flat = [
            transcript
            for row in rows
            for transcript in (*row, *[WeightedTranscript((), 0.0)] * (num_texts - len(row)))
        ]
        tokens, lengths = padded_tokens([transcript.tokens for transcript in flat])
        weights = torch.tensor([transcript.weight for transcript in flat], dtype=batch.features.dtype)
        return replace(
            batch,
            tokens=self.to_device(tokens),
            token_lengths=self.to_device(lengths),
            weights=self.to_device(weights),
        )

    def _written(self, index: int) -> tuple[WeightedTranscript, ...]:
        """The text of an utterance as the only guess; −1 is a placeholder without one."""
        tokens = self.tokens.encode(self.store.text(index)) if index >= 0 else []
        return (WeightedTranscript(tuple(tokens), 1.0),)

    def keys(self, noise: Sequence[int], places: np.ndarray) -> Tensor:
        """Keys [n, B] on the device for the utterances [n, B] of n steps; see `models.noise`."""
        decided = torch.tensor(noise, dtype=torch.int32)[:, None]
        return utterance_keys(self.to_device(decided), self.to_device(torch.from_numpy(places)))

    def precision(self) -> torch.autocast:
        """Within: matrix products in bfloat16 if asked for. Parameters, sums and losses stay as they are."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16, cache_enabled=False)

    def to_device(self, tensor: Tensor) -> Tensor:
        return to_device(tensor, self.device)

    def augmented(self, batch: Batch, keys: Tensor) -> Batch:
        if self.augment is None:
            return batch
        return replace(batch, features=self.augment(batch.features, batch.feature_lengths, keys))


@dataclass(frozen=True)
class Step:
    """A training step to be: utterances [B] of the store, and 31 bits that decide their noise."""

    indices: np.ndarray
    noise: int


@dataclass(frozen=True)
class Client:
    """One client's utterances (indices into the store), seen through the bench of its process.

    `held_out` are utterances of its own that it never trains on: they score a model made for this client.
    """

    id: str
    indices: np.ndarray
    runtime: ClientRuntime
    labels: PseudoLabels = PseudoLabels()
    held_out: np.ndarray | None = None
    read_state: Callable[[], Mapping[str, Tensor]] = dict

    @cached_property
    def state(self) -> Mapping[str, Tensor]:
        """What the client kept from earlier rounds; read when it is first asked for."""
        return self.read_state()

    @property
    def base(self) -> Tensors:
        """The parameters that the run began with."""
        return self.runtime.base

    def reduced_to(self, submodel: str) -> Client:
        """Return the client with a smaller model, and with its state as far as that model has it."""
        units = Submodel.read(submodel)
        return replace(
            self,
            runtime=self.runtime.with_submodel(submodel),
            read_state=lambda: shrink(dict(self.state), units),
        )

    def train(self, steps: LocalSteps) -> Trained:
        """Take steps of SGD on this client's utterances."""
        return local_sgd(self, steps)

    def mean_loss(self, params: Tensors) -> float:
        """Return the mean loss per token of these parameters on the client's utterances."""
        return mean_loss(self, params)

    @property
    def seconds(self) -> float:
        return float(self.runtime.store.seconds[self.indices].sum())

    @cached_property
    def usable(self) -> np.ndarray:
        """Utterances whose loss can be finite: with a text that fits, or with guesses."""
        guessed = np.isin(self.indices, list(self.labels.texts))
        kept = self.indices[guessed | self.runtime.fits(self.indices)]
        if len(kept) == 0:
            raise Unusable(f"no usable utterance among {len(self.indices)}")
        return kept

    def steps(self, local: LocalTraining, round_seed: int) -> Iterator[Step]:
        """The steps of a round, decided by its seed and this client's name alone.

        Which utterances meet is the client's own; whether its short or its long ones come first is the
        round's, so that clients who are trained at the same time have batches of similar shape.
        """
        store, usable, seed = self.runtime.store, self.usable, derive(round_seed, self.id)
        mates, order = np.random.default_rng(seed), np.random.default_rng(derive(round_seed, "order"))
        everything = int(store.num_frames[usable].max()) * len(usable)
        whole = local.batch_seconds == 0
        max_frames = everything if whole else int(local.batch_seconds * store.frames_per_second)
        done = epoch = 0
        while done < local.steps if local.steps > 0 else epoch < local.epochs:
            batches = plan_batches(store.num_frames, usable, max_frames, mates)
            for place in order.permutation(len(batches)):
                if local.steps > 0 and done == local.steps:
                    return
                yield Step(batches[place], derive(seed, done) & 0x7FFFFFFF)
                done += 1
            epoch += 1
