"""Checkpoints: a state as safetensors and JSON, written completely or not at all, with checksums."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file, save_file
from torch import Tensor

from antiphon.records.files import (
    Damaged,
    make_folder,
    read_whole,
    saving,
    sha256_of,
    sync,
    with_usual_mode,
)

FORMAT = "antiphon-checkpoint/1"
CLASS = "__class__"  # of a dataclass in a packed state
T = TypeVar("T")


class CorruptCheckpoint(Damaged):
    """The checksum of a checkpoint does not match: a file was damaged or edited."""


def pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return the value as a JSON tree, and add its tensors to `tensors` under their paths.

    >>> tensors = {}
    >>> pack({"step": 3, "first": {"w": Tensor([0.0])}}, "opt", tensors), list(tensors)
    ({'step': 3, 'first': {'w': {'__tensor__': 'opt/first/w'}}}, ['opt/first/w'])
    """
    if isinstance(value, Tensor):
        tensors[path] = value.detach().contiguous()
        return {"__tensor__": path}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: pack(getattr(value, f.name), f"{path}/{f.name}", tensors) for f in fields(value)}
        return {CLASS: f"{type(value).__module__}:{type(value).__qualname__}", **parts}
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
    """Return the value that `pack` was given.

    A dataclass gets the class it had, which must be imported already. If that is not found, because it has
    moved or an old checkpoint does not name it, `like` gives the class.
    """
    if isinstance(tree, dict) and (cls := _class_of(tree, like)) is not None:
        parts = _with_present_names({k: v for k, v in tree.items() if k != CLASS}, cls, like)
        return cls(**{k: unpack(v, tensors, getattr(like, k, None)) for k, v in parts.items()})
    if isinstance(tree, dict):
        if "__tensor__" in tree:
            return tensors[tree["__tensor__"]]
        if "__tuple__" in tree:
            return tuple(unpack(item, tensors) for item in tree["__tuple__"])
        return {key: unpack(item, tensors) for key, item in tree.items()}
    return tree


def _class_of(tree: Mapping[str, Any], like: Any) -> Any:
    """Return the class of a packed dataclass; None for a plain dict. Imports nothing."""
    fresh = type(like) if is_dataclass(like) and not isinstance(like, type) else None
    if fresh is not None and hasattr(fresh, "renamed"):  # a state may be of a newer class than was written
        return fresh
    module, _, name = str(tree.get(CLASS, "")).partition(":")
    cls: Any = sys.modules.get(module)
    for part in name.split("."):
        cls = getattr(cls, part, None)
    if isinstance(cls, type) and is_dataclass(cls):
        return cls
    if fresh is None and CLASS in tree:
        raise ValueError(f"a state holds a {tree[CLASS]}, which no module that is loaded defines")
    return fresh


def _with_present_names(tree: Mapping[str, Any], cls: Any, like: Any) -> Mapping[str, Any]:
    """Return the fields of an old state under their present names.

    Wrappers once stored the fields of the inner state among their own.
    """
    names, renamed = {field.name for field in fields(cls)}, getattr(cls, "renamed", {})
    tree = {renamed.get(key, key): value for key, value in tree.items()} if tree.keys() - names else tree
    if "inner" not in names or "inner" in tree:
        return tree
    known, state = set[str](), like.inner
    while is_dataclass(state):
        known |= {field.name for field in fields(state)}
        state = getattr(state, "inner", None)
    inner = {key: value for key, value in tree.items() if key in known - names}
    return {"inner": inner, **{key: value for key, value in tree.items() if key in names}}


def save(folder: Path, state: Any, notes: Mapping[str, Any]) -> None:
    """Write a checkpoint folder; `notes` is JSON of the caller. It gets its name when it is complete."""
    temporary = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    tensors: dict[str, Tensor] = {}
    tree = pack(state, "state", tensors)
    try:
        with saving(folder, "Earlier checkpoints are intact. "):
            make_folder(folder.parent)
            temporary.mkdir()
            with with_usual_mode(temporary / "state.safetensors"):
                save_file(unshared(tensors), temporary / "state.safetensors")
            digest = sha256_of(temporary / "state.safetensors")
            body = {"format": FORMAT, "state": tree, "notes": dict(notes), "tensors_sha256": digest}
            text = json.dumps(body)
            (temporary / "state.json").write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n")
            for path in (temporary / "state.safetensors", temporary / "state.json", temporary):
                sync(path)
            _remove(folder)
            os.replace(temporary, folder)
            sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def in_own_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that are parts of a file or message.

    Torch computes in memory at multiples of 64 bytes. Elsewhere, small matrix products have other last bits:
    a run would not go on with the bits of one that was never stopped.
    """
    return {name: tensor.clone() for name, tensor in tensors.items()}


def unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU. Tensors that share memory are cloned: safetensors refuses shared memory."""
    seen: set[int] = set()
    copies = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        copies[name] = tensor.cpu().clone() if memory in seen else tensor.cpu()
        seen.add(memory)
    return copies


def load(folder: Path, like: T, device: str = "cpu") -> tuple[T, dict[str, Any]]:
    """Return the state and notes of a checkpoint; raise CorruptCheckpoint if any byte has changed."""
    try:
        expected, text, *_ = read_whole(folder / "state.json").decode().split("\n")
        if hashlib.sha256(text.encode()).hexdigest() != expected:
            raise CorruptCheckpoint(f"checkpoint {folder} is damaged: state.json was changed")
        body = json.loads(text)
        if body["format"] != FORMAT:
            raise CorruptCheckpoint(f"checkpoint {folder} has format {body['format']!r}, not {FORMAT!r}")
        if sha256_of(folder / "state.safetensors") != body["tensors_sha256"]:
            raise CorruptCheckpoint(f"checkpoint {folder} is damaged: state.safetensors was changed")
    except CorruptCheckpoint:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptCheckpoint(f"checkpoint {folder} is damaged: {error}") from error
    tensors = in_own_memory(load_file(folder / "state.safetensors", device=device))
    return unpack(body["state"], tensors, like), body["notes"]


def folder_of(checkpoints: Path, round: int) -> Path:
    return checkpoints / f"round-{round:06d}"


def saved_rounds(checkpoints: Path) -> list[int]:
    """Return the rounds that have a checkpoint, oldest first."""
    names = (path.name.removeprefix("round-") for path in checkpoints.glob("round-*"))
    return sorted(int(name) for name in names if re.fullmatch(r"\d{6,9}", name))


def prune(checkpoints: Path, keep_last: int, keep: set[int], newest: int) -> None:
    """Remove checkpoints after round `newest`, and up to it all but the last `keep_last` and `keep`.

    Folders that were not finished are removed as well.
    """
    for leftover in checkpoints.glob(".round-*"):
        shutil.rmtree(leftover)
    rounds = saved_rounds(checkpoints)
    last = [round for round in rounds if round <= newest][-keep_last:]
    for round in rounds:
        if round not in last and (round not in keep or round > newest):
            _remove(folder_of(checkpoints, round))


def _remove(folder: Path) -> None:
    """Rename a checkpoint, then remove it: a killed process must not leave half of one under its name."""
    if folder.exists():
        renamed = folder.with_name(f".{folder.name}.removing")
        shutil.rmtree(renamed, ignore_errors=True)
        os.replace(folder, renamed)
        shutil.rmtree(renamed)
