"""The model that a run starts from: a new one, that of an earlier run, or one in another folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antiphon import config
from antiphon.core import Tensors
from antiphon.data.tokens import Tokens, load_tokens
from antiphon.experiment.settings import Run
from antiphon.models.adapters import AdaptedConfig, can_start_from, is_adapter
from antiphon.models.model import read_parameters
from antiphon.models.noise import SpecAugment
from antiphon.models.reduced import ReducedConfig
from antiphon.recognizer import Blueprint, open_blueprint
from antiphon.records.checkpoint import in_own_memory
from antiphon.records.reading import read_as
from antiphon.records.run_files import RunFile
from antiphon.tasks.submodel import Submodel, shrink


@dataclass(frozen=True)
class SeedModel:
    """A model to be adapted: its folder, its structure, its tokens, and the masks of its training."""

    folder: Path
    blueprint: Blueprint
    tokens: Tokens
    augment: SpecAugment = SpecAugment()

    @classmethod
    def open(cls, run: Path) -> SeedModel:
        folder, blueprint = open_blueprint(run)
        seed, about = cls(run.resolve(), blueprint, load_tokens(folder)), run / "run.json"
        if not about.exists():
            return seed
        settings = read_as(RunFile, about).config.augment
        return replace(seed, augment=config.from_dict(SpecAugment, settings, str(about)))


def check_start(start_folder: str, wanted: Blueprint, tokens: Tokens) -> Blueprint:
    """Return the blueprint of a model in another folder; refuse one that does not fit the experiment."""
    folder, blueprint = open_blueprint(start_folder)
    model = blueprint.model.full if isinstance(blueprint.model, ReducedConfig) else blueprint.model
    if blueprint.frontend != wanted.frontend or not can_start_from(wanted.model, model):
        raise ValueError(f"{folder} has another model or front end than the experiment: set both alike")
    if load_tokens(folder) != tokens:
        raise ValueError(f"{folder} has other tokens than this corpus gives: was it trained on another?")
    return blueprint if model == wanted.model else wanted


def load_start(run: Run, out: Path, fresh: Tensors) -> dict[str, Any]:
    """Return the parameters that a run starts from, and their submodel: a pruned run leaves a smaller one.

    Adapters are new if the model that it starts from has none.
    """
    if not run.start_folder and not run.start_run:
        return {"params": fresh, "submodel": ""}
    if run.start_run and not (out / run.start_run / "model" / "model.safetensors").exists():
        raise ValueError(f"a run starts from {run.start_run!r}, which has not finished in {out}")
    folder, blueprint = open_blueprint(run.start_folder or out / run.start_run)
    trained = shrink(fresh, Submodel.read(blueprint.submodel))
    adapters = {}
    if not isinstance(blueprint.model, AdaptedConfig):
        adapters = {name: tensor for name, tensor in trained.items() if is_adapter(name)}
        trained = {name: tensor for name, tensor in trained.items() if name not in adapters}
    device = str(next(iter(fresh.values())).device)
    tensors = read_parameters(folder / "model.safetensors", trained, device)
    # In the order of the file: the last bit of a sum over parameters depends on their order.
    params = in_own_memory({name: tensor for name, tensor in tensors.items() if name in trained})
    return {"params": {**params, **adapters}, "submodel": blueprint.submodel}
