"""A client: its utterances, and a model to work on. What is here never leaves the client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from antiphon.core import Tensors
from antiphon.data.batches import Batch, collate, plan_batches
from antiphon.data.store import FeatureStore
from antiphon.data.tokens import Tokens
from antiphon.models.model import Model
from antiphon.models.specaugment import SpecAugment
from antiphon.seeding import derive


class Unusable(ValueError):
    """A client that has nothing to train on."""


class Bench:
    """What the clients of one process share: features, tokens, and one model whose weights are swapped.

    `base` are the parameters a run starts from. Those that do not travel in subspace training stay as
    they are there; a task's tensors are laid over them.
    """

    def __init__(
        self,
        store: FeatureStore,
        tokens: Tokens,
        model: Model,
        base: Tensors,
        augment: SpecAugment | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.store, self.tokens, self.augment = store, tokens, augment
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self.parameters = dict(self.model.named_parameters())
        self.base = base
        self.load(base)

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

    @contextmanager
    def randomness(self, seed: int) -> Iterator[torch.Generator]:
        """Dropout and masks from this seed alone, whatever ran before; the outer state is put back."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            yield torch.Generator().manual_seed(derive(seed, "augment"))


@dataclass(frozen=True)
class Client:
    """One client's utterances (indices into the store), seen through the bench of its process."""

    id: str
    indices: np.ndarray
    bench: Bench

    @property
    def seconds(self) -> float:
        return float(self.bench.store.seconds[self.indices].sum())

    @cached_property
    def usable(self) -> np.ndarray:
        """Utterances whose loss can be finite: text that is not empty, and frames enough to hold it."""
        store, tokens, model = self.bench.store, self.bench.tokens, self.bench.model
        fits = [model.fits(int(store.num_frames[i]), tokens.encode(store.text(i))) for i in self.indices]
        kept = self.indices[np.array(fits, dtype=bool)]
        if len(kept) == 0:
            raise Unusable(f"no usable utterance among {len(self.indices)}")
        return kept

    def training_batches(
        self, batch_seconds: float, epochs: int, steps: int, seed: int
    ) -> Iterator[np.ndarray]:
        """Utterance indices of one batch after another: `steps` of them if above 0, else whole epochs."""
        store, usable, random = self.bench.store, self.usable, np.random.default_rng(seed)
        everything = int(store.num_frames[usable].max()) * len(usable)
        max_frames = int(batch_seconds * store.frames_per_second) if batch_seconds > 0 else everything
        done = epoch = 0
        while done < steps if steps > 0 else epoch < epochs:
            for indices in plan_batches(store.num_frames, usable, max_frames, random):
                if steps > 0 and done == steps:
                    return
                yield indices
                done += 1
            epoch += 1

    def batch(self, indices: np.ndarray) -> Batch:
        return collate(self.bench.store, indices, self.bench.tokens.encode).to(self.bench.device)
