"""A recogniser one can keep: front end, tokens and model in one folder, from samples to text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from antiphon import config
from antiphon.data.audio import SAMPLE_RATE, decode, resample
from antiphon.data.batches import Batch
from antiphon.data.frontends import Filterbank, Frontend
from antiphon.data.tokens import Tokens, load_tokens
from antiphon.models.ctc import CtcConfig
from antiphon.models.model import Model, ModelConfig
from antiphon.models.reduced import ReducedConfig
from antiphon.tasks.submodel import Submodel

FORMAT = "antiphon-model/1"


@dataclass(frozen=True)
class Blueprint:
    """What a model is made of; with parameters and tokens it is a recogniser."""

    frontend: Frontend = Filterbank()
    model: ModelConfig = CtcConfig()

    def build(self, num_tokens: int) -> Model:
        return self.model.build(self.frontend.dim, num_tokens)

    def with_submodel(self, submodel: str) -> Blueprint:
        """Of the same with what is kept of the model (`tasks.submodel`); refuses models that stay whole."""
        return (
            replace(self, model=ReducedConfig(self.whole_model(), Submodel.read(submodel)))
            if submodel
            else self
        )

    def whole_model(self) -> ModelConfig:
        """The model, if units can be removed from it."""
        if reason := getattr(self.model, "why_whole", ""):
            raise ValueError(reason)
        return self.model

    @property
    def submodel(self) -> str:
        """What is kept of the model; "": all of it."""
        return self.model.submodel.write() if isinstance(self.model, ReducedConfig) else ""

    def packed(self, folder: Path) -> Blueprint:
        """Copy the files that front end and model need into a model's folder, so that it can be moved."""
        parts = {name: getattr(self, name) for name in ("frontend", "model")}
        return replace(self, **{n: p.packed(folder) for n, p in parts.items() if hasattr(p, "packed")})

    def unpacked(self, folder: Path) -> Blueprint:
        """The blueprint of a model in `folder`, where `packed` has put what it needs."""
        parts = {name: getattr(self, name) for name in ("frontend", "model")}
        return replace(self, **{n: p.unpacked(folder) for n, p in parts.items() if hasattr(p, "unpacked")})


def open_blueprint(folder: str | Path) -> tuple[Path, Blueprint]:
    """What the model in a folder is made of; of a run, the folder in it that has the model."""
    folder = Path(folder)
    folder = folder / "model" if (folder / "model" / "model.json").exists() else folder
    try:
        body = json.loads((folder / "model.json").read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder} holds no model ({error}); give the folder of a finished run, such as out/dga"
        ) from error
    if body.get("format") != FORMAT:
        raise ValueError(f"{folder / 'model.json'} has format {body.get('format')!r}, not {FORMAT!r}")
    return folder, config.from_dict(Blueprint, body["blueprint"]).unpacked(folder)


@dataclass(frozen=True)
class Recognizer:
    """Turns samples into text.

    `Recognizer.load("out/dga").transcribe("hello.wav")`
    """

    blueprint: Blueprint
    tokens: Tokens
    model: Model

    def save(self, folder: Path, notes: Mapping[str, Any] | None = None) -> None:
        """Writes model.json (with the caller's notes), model.safetensors and the tokens."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: p.detach().cpu().contiguous() for name, p in self.model.named_parameters()}
        save_file(tensors, folder / "model.safetensors")
        self.tokens.save(folder)
        blueprint = config.to_dict(self.blueprint.packed(folder))
        body = {"format": FORMAT, "blueprint": blueprint, "notes": dict(notes or {})}
        (folder / "model.json").write_text(json.dumps(body, indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> Recognizer:
        """Opens a model folder, or the model of a run."""
        folder, blueprint = open_blueprint(folder)
        tokens = load_tokens(folder)
        model = blueprint.build(tokens.size)
        parameters = dict(model.named_parameters())
        tensors = load_file(folder / "model.safetensors")
        if tensors.keys() != parameters.keys():
            odd = sorted(tensors.keys() ^ parameters.keys())[0]
            raise ValueError(f"{folder}: model.safetensors does not fit model.json (parameter {odd!r})")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[name])
        model.to(device)
        return cls(blueprint, tokens, model)

    @torch.inference_mode()
    def transcribe(self, audio: str | Path | np.ndarray) -> str:
        """The text of one recording: a file, or samples at 16 kHz, mono, between −1 and 1."""
        samples = audio if isinstance(audio, np.ndarray) else resample(*decode(Path(audio).read_bytes()))
        if len(samples) < SAMPLE_RATE // 20:
            raise ValueError(f"too short to recognise: {len(samples)} samples")
        # Through float16, as the model saw its features in the store.
        frames = self.blueprint.frontend.load()(samples).astype(np.float16).astype(np.float32)
        device = next(self.model.parameters()).device
        self.model.eval()
        lengths = torch.tensor([len(frames)])
        none = torch.zeros(1, 0, dtype=torch.int64)
        batch = Batch(torch.from_numpy(frames)[None], lengths, none, torch.tensor([0]), (0,))
        return self.tokens.decode(self.model.greedy(batch.to(device))[0])
