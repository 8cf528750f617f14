"""The model a run starts from: a fresh one, that of an earlier run, or one from another folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from antiphon.core import Tensors
from antiphon.data.tokens import Tokens, load_tokens
from antiphon.models.reduced import ReducedConfig
from antiphon.recognizer import Blueprint, open_blueprint
from antiphon.tasks.submodel import Submodel, shrink


def check_start(start: str, wanted: Blueprint, tokens: Tokens) -> Blueprint:
    """That of a model in another folder; refused if it is not, or was not when whole, the experiment's."""
    folder, found = open_blueprint(start)
    whole = replace(found, model=found.model.full) if isinstance(found.model, ReducedConfig) else found
    if whole != wanted:
        raise ValueError(f"{folder} holds another model or front end than the experiment's: set both alike")
    if load_tokens(folder) != tokens:
        raise ValueError(f"{folder} has other tokens than this corpus gives: was it trained on another?")
    return found


def load_start(start: str, out: Path, fresh: Tensors) -> dict[str, Any]:
    """The parameters, and the model's shape: a run that was pruned leaves a smaller one."""
    if not start:
        return {"params": fresh, "submodel": ""}
    source = Path(start) if "/" in start else out / start
    if not (source / "model" / "model.safetensors").exists() and "/" not in start:
        raise ValueError(f"a run starts from {start!r}, which has not finished in {out}")
    folder, blueprint = open_blueprint(source)
    found = load_file(folder / "model.safetensors", device=str(next(iter(fresh.values())).device))
    trained = shrink(fresh, Submodel.read(blueprint.submodel))
    # In the order of the file: the last bit of a sum over parameters depends on their order.
    params = {name: tensor for name, tensor in found.items() if name in trained}
    return {"params": params, "submodel": blueprint.submodel}
