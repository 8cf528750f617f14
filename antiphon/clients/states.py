"""The states of clients from round to round: control variates, personal layers, memory of a compressor.

A state is a dict of tensors. It is stored in one file for each client and version, in the folder of the run.
A version is the moment (round, call) of the task that wrote it; a task reads the newest version before its
own moment. So a round that is repeated after a crash reads the same states as the first time, and a resumed
run continues exactly.

States are on disk before the checkpoint that relies on them (`sync`), old versions are removed after it
(`prune`), and versions after the checkpoint are removed on resume (`rollback`). A client without a state
has no file, and a file is read only when its client gets a task.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from antiphon.core import Tensors, size_in_bytes
from antiphon.records.checkpoint import in_own_memory
from antiphon.records.files import file_name, regular, saving, sync

Moment = tuple[int, int]  # round, call
SUFFIX, WRITING = ".safetensors", ".writing"
RENEW = ", or set rounds.renew_lost_states=true to let the client start anew"


class LostState(ValueError):
    """The state of a client is missing or damaged."""


@dataclass
class ClientStates:
    """The states of all clients of a run, in a folder that every process can see.

    `expected` maps clients to the moment of their last state, as the journal of a resumed run knows it. With
    `renew_lost`, a client whose state is missing or damaged starts anew; without, its tasks fail and name it.
    """

    folder: Path
    renew_lost: bool = False
    expected: dict[str, Moment] = field(default_factory=dict)
    _unsynced: list[Path] = field(default_factory=list, init=False)
    _several: set[Path] = field(default_factory=set, init=False)  # folders that may have several versions

    def read(self, client: str, moment: Moment, device: str = "cpu") -> Tensors:
        """Return the newest state before a moment; empty if the client has none."""
        versions = [version for version in _versions(self._folder_of(client)) if version[0] < moment]
        expected = self.expected.get(client)
        try:
            if expected is not None and expected < moment and (not versions or versions[-1][0] < expected):
                raise LostState(
                    f"the state of {client!r} from round {expected[0] + 1} is missing in "
                    f"{self._folder_of(client)}: restore it{RENEW}"
                )
            return _load(versions[-1][1], client, device) if versions else {}
        except LostState:
            if self.renew_lost:
                return {}
            raise

    def write(self, client: str, moment: Moment, state: Mapping[str, Tensor]) -> int:
        """Store a state under its moment; return its size in bytes. The file is never incomplete."""
        path = self._folder_of(client) / f"{moment[0]:06d}.{moment[1]:06d}{SUFFIX}"
        temporary = path.with_name(f"{path.name}.{os.getpid()}{WRITING}")
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
        try:
            with saving(path):
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.parent.mkdir(exist_ok=True)
                save_file(tensors, temporary, metadata={"sha256": _digest(tensors, client, moment)})
                os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        self._unsynced.append(path)
        self.wrote(client, moment)
        return size_in_bytes(tensors)

    def wrote(self, client: str, moment: Moment) -> None:
        """Note that a client has a version, which another process may have written."""
        self.expected[client] = max(moment, self.expected.get(client, moment))
        self._several.add(self._folder_of(client))

    def sync(self) -> None:
        """Wait until every version that this process wrote is on disk."""
        if not self._unsynced:
            return
        parents = {path.parent for path in self._unsynced} | {self.folder, self.folder.parent}
        for target in (*self._unsynced, *sorted(parents)):
            sync(target)
        self._unsynced = []

    def prune(self, rounds: Iterable[int]) -> None:
        """Remove versions that a run resumed at one of these rounds, or later, cannot read."""
        for folder in sorted(self._several):
            versions = _versions(folder)
            needed = {_newest_before(versions, (round, 0)) for round in rounds}
            latest = max(rounds, default=0)
            for moment, path in versions:
                if moment < (latest, 0) and path not in needed:
                    path.unlink(missing_ok=True)  # another process may have removed it
            if len(_versions(folder)) < 2:
                self._several.discard(folder)

    def forget_lost(self, client: str, round: int) -> None:
        """Remove states of rounds before this one that are newer than the expected one.

        A client wrote them, and its answer never reached the server.
        """
        expected = self.expected.get(client, (-1, 0))
        for moment, path in _versions(self._folder_of(client)):
            if expected[0] < moment[0] < round:
                path.unlink()

    def rollback(self, round: int) -> None:
        """Remove what was written at or after a round. Lists names; opens no file."""
        for folder in self.folder.glob("*/"):
            for path in folder.iterdir():
                moment = _moment(path)
                if moment is None or moment >= (round, 0):  # also what a kill left of a file
                    path.unlink()
            self._several.add(folder)

    def _folder_of(self, client: str) -> Path:
        return self.folder / file_name(client)


def _versions(folder: Path) -> list[tuple[Moment, Path]]:
    """Return the versions in the folder of a client, the oldest first."""
    files = folder.glob(f"*{SUFFIX}")
    return sorted((moment, path) for path in files if (moment := _moment(path)) is not None)


def _newest_before(versions: list[tuple[Moment, Path]], moment: Moment) -> Path | None:
    return next((path for version, path in reversed(versions) if version < moment), None)


def _moment(path: Path) -> Moment | None:
    """Return the moment that a version's name says; None for another file."""
    numbers = re.fullmatch(rf"(\d+)\.(\d+){re.escape(SUFFIX)}", path.name)
    return (int(numbers[1]), int(numbers[2])) if numbers else None


def _load(path: Path, client: str, device: str) -> Tensors:
    try:
        open(path, "rb", opener=regular).close()  # a pipe would wait for ever
        with safe_open(path, framework="pt", device=device) as file:
            tensors = in_own_memory({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
            digest = (file.metadata() or {}).get("sha256")
    except (OSError, SafetensorError) as error:
        raise LostState(f"the client state {path} is damaged ({error}): restore it{RENEW}") from error
    values = {name: tensor.cpu() for name, tensor in tensors.items()}
    # Earlier versions of antiphon wrote the checksum of the tensors alone.
    if digest != _digest(values, client, _moment(path)) and digest != _digest(values):
        raise LostState(
            f"the client state {path} is damaged, or that of another client or round (its checksum does not "
            f"match): restore it{RENEW}"
        )
    return tensors


def _digest(tensors: Mapping[str, Tensor], client: str = "", moment: Moment | None = None) -> str:
    """Return a checksum of names, types, shapes and values, and of whose state it is, from which moment."""
    digest = hashlib.sha256(json.dumps([client, moment]).encode() if moment else b"")
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())  # NumPy has no bfloat16
    return digest.hexdigest()
