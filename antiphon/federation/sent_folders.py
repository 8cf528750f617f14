"""Models that the work of clients needs and only the server has: a teacher, and its language models.

A task names them by paths in its views. A path of the server means nothing at a site, so a task that travels
has a digest in its place. A site that does not know the digest asks for the model, which travels once, as
files in one message. It is a folder that antiphon has just written: JSON and tensors. The site keeps it under
its digest, and reads it with the code that reads a model of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from antiphon.core import Tensors
from antiphon.lm.arpa import load_ngram, save_ngram
from antiphon.lm.neural_lm import MAIN as LM_MAIN
from antiphon.lm.neural_lm import NeuralLm
from antiphon.pools.remote_messages import Message, MissingBody, WireError, head_of, pack
from antiphon.recognizer import MAIN as MODEL_MAIN
from antiphon.recognizer import Recognizer
from antiphon.records.folders import new_folder

PATHS = ("path", "model", "folder")  # settings of views that name a file
TOKENS_MAIN = "tokens.json"
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def with_paths(task: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return the configuration of a task with another text in place of each path in its views.

    >>> with_paths({"views": '[["pseudo_labels",{"model":"seed"}]]'}, str.upper)["views"]
    '[["pseudo_labels",{"model":"SEED"}]]'
    """

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {k: change(str(item)) if k in PATHS and item else walk(item) for k, item in value.items()}

    if "views" not in task:
        return dict(task)
    views = json.dumps(walk(json.loads(str(task["views"]))), separators=(",", ":"))
    return {**task, "views": views}


# --- On the server --------------------------------------------------------------------------------


@dataclass
class SentFolders:
    """The models that the tasks of a run name, packed when a task first names them."""

    _digests: dict[str, str] = field(default_factory=dict)  # by path
    _messages: dict[str, Message] = field(default_factory=dict)  # by digest

    def outgoing(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration of a task as it travels: digests in place of paths."""
        return with_paths(task, self._reference)

    def supply(self, digest: str) -> Message | None:
        return self._messages.get(digest)

    def _reference(self, path: str) -> str:
        if path not in self._digests:
            message = pack_model(Path(path))
            self._digests[path] = digest = str(head_of(message)["body"]["sha256"])
            self._messages[digest] = message
        return f"sha256:{self._digests[path]}"


def pack_model(path: Path) -> Message:
    """Return a message with a recogniser or a language model, as antiphon writes it now."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        save_model(path, folder)
        return pack_files("folder", folder)


def save_model(path: Path, folder: Path) -> None:
    """Write a recogniser or a language model to a folder, as antiphon writes it now."""
    if any((path / part / MODEL_MAIN).exists() for part in ("", "model")):
        Recognizer.load(path).save(folder)
    elif (path / LM_MAIN).exists():
        NeuralLm.load(path).save(folder)
    else:
        save_ngram(load_ngram(path), folder)


def pack_files(verb: str, folder: Path) -> Message:
    """Return a message with all files of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in files]
    contents = [torch.from_numpy(np.fromfile(path, dtype=np.uint8)) for path in files]
    return pack({"verb": verb}, dict(zip(names, contents, strict=True)))


# --- At a site ------------------------------------------------------------------------------------


def keep_files(files: Tensors, folder: Path, most: int) -> None:
    """Write the files of a message to a new folder; WireError if a name leads out of it.

    Of the folders beside it, this many stay: those that were used last.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(folder, several=True) as made:
        for name, contents in files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\0" in name or contents.dtype != torch.uint8:
                raise WireError(f"the message holds {name!r:.80}, which cannot be a file of it")
            target = made / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(contents.numpy().tobytes())
    by_age = sorted(folder.parent.iterdir(), key=lambda path: path.stat().st_mtime)
    for old in by_age[:-most]:
        shutil.rmtree(old, ignore_errors=True)


def local_paths(task: Mapping[str, Any], kept: Path) -> dict[str, Any]:
    """Return the configuration of a task with paths of this machine in place of digests.

    MissingBody if a model is not here yet; WireError for a path: a server must not choose what a site opens.
    """

    def local(name: str) -> str:
        digest = DIGEST.fullmatch(name)
        if digest is None:
            raise WireError(f"the task names the file {name[:80]!r}, which is on the server")
        folder = kept / digest[1]
        if not folder.is_dir():
            raise MissingBody(digest[1])
        os.utime(folder)  # it was used
        check_sent(folder)
        return str(folder)

    return with_paths(task, local)


def check_sent(folder: Path) -> None:
    """Refuse a folder that was sent and names code, or a folder outside it: a site runs and opens its own."""
    for name in (MODEL_MAIN, LM_MAIN):
        if (folder / name).exists():
            refuse_imports(json.loads((folder / name).read_text()))
    if (folder / TOKENS_MAIN).exists():
        refuse_imports(json.loads((folder / TOKENS_MAIN).read_text()).get("kind"))


def refuse_imports(settings: Any) -> None:
    """Refuse settings that name a class by its module, or a folder outside the one that was sent."""
    if isinstance(settings, Mapping):
        outside = str(settings.get("folder", ""))
        if outside.startswith("/") or ".." in PurePosixPath(outside).parts:
            raise WireError(f"what was sent names the folder {outside[:80]!r}, which is not part of it")
        refuse_imports([*settings, *settings.values()])
    elif isinstance(settings, list):
        for item in settings:
            refuse_imports(item)
    elif isinstance(settings, str) and re.match(r"\s*[\w.]+\s*:", settings):
        raise WireError(f"what was sent names the class {settings[:80]!r}: sites take registered names only")
