"""The work every framework does: data, first weights and cohorts from a folder, and a client's training.

It imports numpy and torch only, so that every peer's own environment can read it.
"""

from __future__ import annotations

import json
import socket
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

Parameters = dict[str, Tensor]
BATCH_SIZE, SEED = 10, 7


def client_names(number: int) -> list[str]:
    """In the order of the data, which is also the sorted order that antiphon draws from."""
    return [f"{client:03d}" for client in range(number)]


class Ctc(nn.Module):
    """A convolution that halves the frame rate, a bidirectional LSTM, CTC: 322,973 parameters."""

    num_features, num_tokens = 80, 29

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(self.num_features, 128, kernel_size=5, stride=2, padding=2)
        self.recurrent = nn.LSTM(128, 128, batch_first=True, bidirectional=True)
        self.output = nn.Linear(256, self.num_tokens)

    def forward(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Features [B, T, 80] and tokens [B, U], all of one length: the mean loss per token."""
        hidden = torch.relu(self.convolution(features.transpose(1, 2))).transpose(1, 2)
        scores = self.output(self.recurrent(hidden)[0]).log_softmax(-1).transpose(0, 1)
        frames, length = (torch.full((len(tokens),), size) for size in (len(scores), tokens.shape[1]))
        return nn.functional.ctc_loss(scores, tokens, frames, length)


class Mlp(nn.Module):
    """A classifier: 26,506 parameters."""

    num_features, num_classes = 784, 10

    def __init__(self) -> None:
        super().__init__()
        sizes = (self.num_features, 32, 32, self.num_classes)
        self.first, self.second, self.third = (nn.Linear(*pair) for pair in pairwise(sizes))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Features [B, 784], labels [B]: the mean loss."""
        hidden = torch.relu(self.second(torch.relu(self.first(features))))
        return nn.functional.cross_entropy(self.third(hidden), labels)


class Wide(nn.Module):
    """Two million parameters, never trained: what is left is the carrying."""

    num_features = 1000

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(self.num_features, 2000, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        return self.only(features).square().mean()


MODELS: dict[str, type[nn.Module]] = {"ctc": Ctc, "mlp": Mlp, "noop": Wide}


@dataclass(frozen=True)
class Workload:
    """`data` are tensors [clients, samples, …]; a client's batches are its samples in order, by tens."""

    name: str
    lr: float
    epochs: int
    turn: int  # rounds that are done without waiting for others
    cohorts: list[list[int]]
    data: tuple[Tensor, ...]
    params: Parameters

    @cached_property
    def batches(self) -> list[list[list[Tensor]]]:
        """Of each client: views of `data`, made once."""
        split = [
            [tensor[client].split(BATCH_SIZE) for tensor in self.data] for client in range(self.num_clients)
        ]
        return [[list(batch) for batch in zip(*tensors, strict=True)] for tensors in split]

    @property
    def num_clients(self) -> int:
        return len(self.data[0])

    @property
    def num_samples(self) -> int:
        return self.data[0].shape[1]

    @cached_property
    def model(self) -> nn.Module:
        """One for a process, with the first weights at first."""
        model = MODELS[self.name]()
        model.load_state_dict(self.params)
        return model

    def loss(self, params: Parameters) -> float:
        """The mean loss of these weights over all clients."""
        self.model.load_state_dict(params)
        clients = ([tensor[k] for tensor in self.data] for k in range(self.num_clients))
        with torch.no_grad():
            return statistics.mean(float(self.model(*data)) for data in clients)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        settings = {key: getattr(self, key) for key in ("name", "lr", "epochs", "turn", "cohorts")}
        (folder / "settings.json").write_text(json.dumps(settings))
        np.savez(folder / "data.npz", *(tensor.numpy() for tensor in self.data))
        save_params(folder / "params.npz", self.params)


@cache
def load(folder: str) -> Workload:
    """The workload of a folder, read once a process; from here on torch uses one thread."""
    torch.set_num_threads(1)
    settings = json.loads((Path(folder) / "settings.json").read_text())
    with np.load(Path(folder) / "data.npz") as file:
        data = tuple(torch.from_numpy(file[name]) for name in file.files)
    return Workload(**settings, data=data, params=load_params(Path(folder) / "params.npz"))


def save_params(path: Path, params: Parameters) -> None:
    np.savez(path, allow_pickle=False, **{name: tensor.detach().numpy() for name, tensor in params.items()})


def load_params(path: Path) -> Parameters:
    with np.load(path) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def local_sgd(model: nn.Module, batches: Sequence[Sequence[Tensor]], lr: float, epochs: int) -> float:
    """A client's training, as a PyTorch tutorial writes it; the mean loss of its steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    total = torch.zeros(())
    for _ in range(epochs):
        for batch in batches:
            optimizer.zero_grad()
            loss = model(*batch)
            loss.backward()
            optimizer.step()
            total += loss.detach()
    return float(total) / max(1, epochs * len(batches))


class Gate:
    """Where a framework waits for its turn: before its first round, and after every `turn` rounds."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self.turn, self.done, self.folder = workload.turn, 0, folder
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(folder / "gate"))
        self.wait()

    def lap(self) -> None:
        """To be called at the end of every round."""
        self.done += 1
        if self.done % self.turn == 0:
            self.wait()

    def write(self, params: Parameters, **versions: str) -> None:
        """Leaves what the benchmark needs of the end: the last weights, and what made them."""
        save_params(self.folder / "params.npz", params)
        (self.folder / "versions.json").write_text(json.dumps({**versions, "torch": torch.__version__}))

    def wait(self) -> None:
        self.socket.send(b".")
        if not self.socket.recv(1):
            raise SystemExit("the benchmark has ended")
