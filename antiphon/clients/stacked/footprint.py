"""The memory that a stacked client takes, which decides how many clients are trained at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from antiphon.clients.client import ClientRuntime
from antiphon.clients.stacked.client_stack import Stack
from antiphon.clients.stacked.stacked_rows import StackedBatch
from antiphon.core import Tensors, size_in_bytes
from antiphon.data.batches import Batch
from antiphon.tasks.local_training import LocalTraining

LONG = 512  # frames of the longer of two measured utterances; the other has a quarter
FRAMES_PER_TOKEN = 8
COPIES = 4  # copies of a client's parameters in a launch: parameters, gradients, and buffers
WAITING = 2  # copies between launches: parameters and update
BUFFERED = 2  # copies of a moment in a launch
SHARE = 0.7  # the share of the process's memory that stacked training may fill
HELD = 0.3  # the share of that for clients and updates that wait
FREE = 0.9  # the share of the free memory that is relied on


@dataclass(frozen=True)
class Footprint:
    """Memory in bytes. `room` is available; an update takes `update`.

    A client takes WAITING updates during its round, and COPIES more while it takes a step; each of its
    optimiser's moments takes one more, and BUFFERED in a step. In a step an utterance of T frames takes
    linear·T + quadratic·T².
    """

    room: float = math.inf
    update: float = 1.0
    linear: float = 0.0
    quadratic: float = 0.0
    num_moments: int = 0

    def fits(self, num_clients: np.ndarray, shapes: np.ndarray) -> np.ndarray:
        """Return whether launches fit: num_clients [launches], and shapes [launches, 2] of their batches."""
        rows, frames = shapes[:, 0].astype(float), shapes[:, 1].astype(float)
        largest = rows * (self.linear * frames + self.quadratic * frames**2)
        copies = COPIES + BUFFERED * self.num_moments
        fits: np.ndarray = num_clients * (copies * self.update + largest) <= (1 - HELD) * self.room
        return fits

    def max_in_training(self, max_clients: int) -> int:
        """Return how many clients may be in training at once: from 1 to `max_clients`."""
        waiting = WAITING + self.num_moments
        return int(max(1, min(max_clients, HELD * self.room / (waiting * self.update))))


def measure_footprint(runtime: ClientRuntime, tensors: Tensors) -> Footprint:
    """Take trial steps with stacked parameters; a model that cannot be stacked raises its error.

    Without a GPU, memory is not measured, and only the number of clients limits a launch.
    """
    frames = longest_trial(runtime)
    if runtime.device.type != "cuda":
        _trial(runtime, tensors, frames)
        return Footprint()
    short, long = (_trial(runtime, tensors, length) / length for length in (frames // 4, frames))
    quadratic = max(long - short, 0.0) / (frames - frames // 4)
    linear = max(short - quadratic * (frames // 4), 0.0)
    update = size_in_bytes(tensors)
    return Footprint(_room_on(runtime.device), update, linear, quadratic)


def room(allowed: float, free: float) -> float:
    """Return the bytes to use: SHARE of the allowed ones, halved until they are free.

    A share of the free bytes would depend on other programs on the device, and with it which clients are
    trained together, and the last bits of every update.

    >>> room(allowed=100.0, free=100.0), room(allowed=100.0, free=80.0), room(allowed=100.0, free=70.0)
    (70.0, 70.0, 35.0)
    """
    usable = SHARE * allowed
    while usable > FREE * free > 0:
        usable /= 2
    return usable


def _room_on(device: torch.device) -> float:
    """Return the room on a GPU. `torch.cuda.set_per_process_memory_fraction` limits this process."""
    free, total = torch.cuda.mem_get_info(device)
    reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    return room(total * torch.cuda.get_per_process_memory_fraction(index), free + reusable)


def longest_trial(runtime: ClientRuntime) -> int:
    """Return LONG, halved until the model accepts it: some models take limited lengths only."""
    frames = LONG
    while frames > 2 * FRAMES_PER_TOKEN and not runtime.model.fits(frames, [1]):
        frames //= 2
    return frames


def _trial(runtime: ClientRuntime, tensors: Tensors, num_frames: int) -> float:
    """Return the bytes of activations of one utterance of this many frames."""
    runtime.model.train()
    dtype = next(iter(tensors.values())).dtype
    features = torch.zeros(2, num_frames, runtime.store.dim, dtype=dtype, device=runtime.device)
    lengths = torch.full((2,), num_frames, device=runtime.device)
    tokens = torch.ones(2, -(-num_frames // FRAMES_PER_TOKEN), dtype=torch.int64, device=runtime.device)
    batch = Batch(features, lengths, tokens, torch.full_like(lengths, tokens.shape[1]), (0, 0))
    keys = torch.zeros(2, dtype=torch.int32, device=runtime.device)
    share = torch.ones(2, 1, dtype=dtype, device=runtime.device)
    members = torch.arange(2, device=runtime.device)
    stack = Stack(runtime, tensors, 2)
    cuda = runtime.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(runtime.device)
    before = torch.cuda.memory_allocated(runtime.device) if cuda else 0
    stack.step(StackedBatch(batch, keys, share, members), LocalTraining())
    return (torch.cuda.max_memory_allocated(runtime.device) - before) / 2 if cuda else 0.0
