"""Checkpoints: a state as safetensors + JSON, written whole or not at all, and never trusted blindly."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

FORMAT = "antiphon-checkpoint/1"
T = TypeVar("T")


class CorruptCheckpoint(ValueError):
    """A checkpoint that does not say what it said when it was written."""


def pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """A JSON tree of the value; its tensors go to `tensors`, by path.

    >>> found = {}
    >>> pack({"step": 3, "first": {"w": Tensor([0.0])}}, "opt", found), list(found)
    ({'step': 3, 'first': {'w': {'__tensor__': 'opt/first/w'}}}, ['opt/first/w'])
    """
    if isinstance(value, Tensor):
        tensors[path] = value.detach().contiguous()
        return {"__tensor__": path}
    if is_dataclass(value):
        return {f.name: pack(getattr(value, f.name), f"{path}/{f.name}", tensors) for f in fields(value)}
    if isinstance(value, dict):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"a state cannot hold the key {odd[0]!r}, only text (at {path})")
        return {key: pack(item, f"{path}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, tuple):
        return {"__tuple__": [pack(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a state cannot hold a {type(value).__name__} (at {path})")


def unpack(tree: Any, tensors: Mapping[str, Tensor], like: Any = None) -> Any:
    """What `pack` packed; `like` is a value whose dataclasses are built anew."""
    if is_dataclass(like) and not isinstance(like, type):
        tree = _by_present_names(tree, like)
        return type(like)(**{k: unpack(v, tensors, getattr(like, k, None)) for k, v in tree.items()})
    if isinstance(tree, dict):
        if "__tensor__" in tree:
            return tensors[tree["__tensor__"]]
        if "__tuple__" in tree:
            return tuple(unpack(item, tensors) for item in tree["__tuple__"])
        return {key: unpack(item, tensors) for key, item in tree.items()}
    return tree


def _by_present_names(tree: Mapping[str, Any], like: Any) -> Mapping[str, Any]:
    """The fields of a state as it is today.

    Fields may have had other names. Wrappers once kept the fields of the inner state among their own.
    """
    names = {field.name for field in fields(like)}
    tree = {like.renamed.get(key, key): value for key, value in tree.items()} if tree.keys() - names else tree
    if "inner" in names and "inner" not in tree:
        inner = {key: value for key, value in tree.items() if key not in names}
        fitting = {f.name for part in _states_in(like.inner) for f in fields(part)}
        own = {key: value for key, value in tree.items() if key in names}
        return {"inner": {key: value for key, value in inner.items() if key in fitting}, **own}
    return tree


def _states_in(state: Any) -> list[Any]:
    """A state and those inside it."""
    inner = getattr(state, "inner", None)
    return [state, *(_states_in(inner) if is_dataclass(inner) else [])]


def save(folder: Path, state: Any, notes: Mapping[str, Any]) -> None:
    """Writes a checkpoint folder: complete under its name, or not there. `notes` is JSON of the caller's."""
    temporary = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        tensors: dict[str, Tensor] = {}
        tree = pack(state, "state", tensors)
        save_file(unshared(tensors), temporary / "state.safetensors")
        body = {"format": FORMAT, "state": tree, "notes": dict(notes)}
        body["tensors_sha256"] = _digest(temporary / "state.safetensors")
        text = json.dumps(body)
        body_hash = hashlib.sha256(text.encode()).hexdigest()
        (temporary / "state.json").write_text(f"{body_hash}\n{text}\n")
        for name in ("state.safetensors", "state.json"):
            _sync(temporary / name)
        _remove(folder)
        os.replace(temporary, folder)
        _sync(folder.parent)
    except (OSError, SafetensorError) as error:  # a full disk is the latter when safetensors meets it
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(f"could not write checkpoint {folder} ({error}); earlier ones are intact") from error


def unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, with a copy wherever two parts of a state share memory: safetensors refuses that."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        out[name] = tensor.cpu().clone() if memory in seen else tensor.cpu()
        seen.add(memory)
    return out


def load(folder: Path, like: T, device: str = "cpu") -> tuple[T, dict[str, Any]]:
    """State and notes of a checkpoint; CorruptCheckpoint if a single byte of it has changed."""
    try:
        expected, text, *_ = (folder / "state.json").read_text().split("\n")
        if hashlib.sha256(text.encode()).hexdigest() != expected:
            raise CorruptCheckpoint(f"checkpoint {folder} is damaged: state.json was changed")
        body = json.loads(text)
        if body["format"] != FORMAT:
            raise CorruptCheckpoint(f"checkpoint {folder} has format {body['format']!r}, not {FORMAT!r}")
        if _digest(folder / "state.safetensors") != body["tensors_sha256"]:
            raise CorruptCheckpoint(f"checkpoint {folder} is damaged: state.safetensors was changed")
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, CorruptCheckpoint):
            raise
        raise CorruptCheckpoint(f"checkpoint {folder} is damaged: {error}") from error
    return unpack(body["state"], load_file(folder / "state.safetensors", device=device), like), body["notes"]


def folder_of(checkpoints: Path, round: int) -> Path:
    return checkpoints / f"round-{round:06d}"


def saved_rounds(checkpoints: Path) -> list[int]:
    """Rounds that have a checkpoint, oldest first."""
    return sorted(int(path.name.removeprefix("round-")) for path in checkpoints.glob("round-*"))


def prune(checkpoints: Path, keep_last: int, keep: set[int]) -> None:
    """Removes all but the newest `keep_last` checkpoints and those named in `keep`, and what kills left."""
    for leftover in checkpoints.glob(".round-*"):
        shutil.rmtree(leftover)
    for round in saved_rounds(checkpoints)[:-keep_last]:
        if round not in keep:
            _remove(folder_of(checkpoints, round))


def _remove(folder: Path) -> None:
    """Takes the name away first: a kill half-way must not leave half a checkpoint under it."""
    if folder.exists():
        doomed = folder.with_name(f".{folder.name}.removing")
        shutil.rmtree(doomed, ignore_errors=True)
        os.replace(folder, doomed)
        shutil.rmtree(doomed)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
