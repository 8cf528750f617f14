"""How much memory a stacked client takes: what decides how many are trained at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from antiphon.clients.client import ClientRuntime
from antiphon.clients.stacked.client_stack import Stack, StackedBatch
from antiphon.core import Tensors, size_in_bytes
from antiphon.data.batches import Batch
from antiphon.tasks.local_training import LocalTraining

LONG = 512  # frames of the longer of two utterances that are measured; the other has a quarter
FRAMES_PER_TOKEN = 8
COPIES = 4  # of a client's parameters in a launch: themselves, gradients, and something to move them with
WAITING = 2  # of every client's: its parameters between launches, and its update
SHARE = 0.7  # of the memory a process may have that stacked training may fill …
HELD = 0.3  # … and of that, by clients and updates that wait for their turn
FREE = 0.9  # of what is free when it is measured: no more than that is counted on


@dataclass(frozen=True)
class Footprint:
    """Bytes: a client's update takes `update`; WAITING of that as long as its round lasts, COPIES more while
    it takes a step, and then an utterance of T frames takes linear·T + quadratic·T². There are `room`.
    """

    room: float = math.inf
    update: float = 1.0
    linear: float = 0.0
    quadratic: float = 0.0

    def fits(self, num_clients: np.ndarray, shapes: np.ndarray) -> np.ndarray:
        """Whether launches of so many clients [launches] fit.

        shapes [launches, 2] are rows and frames of the largest batch of each.
        """
        rows, frames = shapes[:, 0].astype(float), shapes[:, 1].astype(float)
        largest = rows * (self.linear * frames + self.quadratic * frames**2)
        fits: np.ndarray = num_clients * (COPIES * self.update + largest) <= (1 - HELD) * self.room
        return fits

    def held(self, max_clients: int) -> int:
        """How many clients may be under way at once, `most` at most and one at least."""
        return int(max(1, min(max_clients, HELD * self.room / (WAITING * self.update))))


def measure_footprint(runtime: ClientRuntime, tensors: Tensors) -> Footprint:
    """Takes trial steps with stacked parameters; raises what a model that cannot be stacked raises.

    Without a GPU memory is not measured: launches are then bounded by their number of clients alone.
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
    """Bytes to be filled: SHARE of what is allowed, or half of that and so on until it is free.

    Not a share of what happens to be free: then who is trained with whom would vary with what else is on the
    device, and with that the last bits of every update.

    >>> room(allowed=100.0, free=100.0), room(allowed=100.0, free=80.0), room(allowed=100.0, free=70.0)
    (70.0, 70.0, 35.0)
    """
    found = SHARE * allowed
    while found > FREE * free > 0:
        found /= 2
    return found


def _room_on(device: torch.device) -> float:
    """Of a GPU that others may use too: `torch.cuda.set_per_process_memory_fraction` says what is ours."""
    free, total = torch.cuda.mem_get_info(device)
    reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    return room(total * torch.cuda.get_per_process_memory_fraction(index), free + reusable)


def longest_trial(runtime: ClientRuntime) -> int:
    """LONG, or half of that and so on until the model takes it: the window of some is limited."""
    frames = LONG
    while frames > 2 * FRAMES_PER_TOKEN and not runtime.model.fits(frames, [1]):
        frames //= 2
    return frames


def _trial(runtime: ClientRuntime, tensors: Tensors, num_frames: int) -> float:
    """Bytes of activations of one utterance of so many frames."""
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
