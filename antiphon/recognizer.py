"""A recogniser that can be saved: front end, tokens and model in one folder, from samples to text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antiphon import config
from antiphon.data.audio import SAMPLE_RATE, decode, resample
from antiphon.data.batches import Batch
from antiphon.data.frontends import Filterbank, Frontend
from antiphon.data.tokens import Tokens, load_tokens
from antiphon.models.ctc import CtcConfig
from antiphon.models.model import Model, ModelConfig, build_model, load_parameters, save_parameters
from antiphon.models.reduced import ReducedConfig
from antiphon.models.torch_device import find_device
from antiphon.records.files import read_whole, write_json
from antiphon.records.folders import files_in, filled_folder
from antiphon.records.reading import read_as
from antiphon.records.run_files import ModelFile
from antiphon.tasks.submodel import Submodel

MAIN = "model.json"


@dataclass(frozen=True)
class Blueprint:
    """The settings of a model; with parameters and tokens it is a recogniser."""

    frontend: Frontend = Filterbank()
    model: ModelConfig = CtcConfig()

    def build(self, num_tokens: int, where: str = "") -> Model:
        """Build the model; `where` names the file that the settings are from, for error messages."""
        return build_model(self.model, self.frontend.dim, num_tokens, where)

    def with_submodel(self, submodel: str) -> Blueprint:
        """The blueprint of a submodel (`tasks.submodel`); refuses models that cannot be pruned."""
        if not submodel:
            return self
        return replace(self, model=ReducedConfig(self.whole_model(), Submodel.read(submodel)))

    def whole_model(self) -> ModelConfig:
        """The model's settings; refuses a model that cannot be pruned."""
        if reason := getattr(self.model, "why_whole", ""):
            raise ValueError(reason)
        return self.model

    @property
    def submodel(self) -> str:
        """The units that are left of a pruned model; "": all of them."""
        return self.model.submodel.write() if isinstance(self.model, ReducedConfig) else ""

    def packed(self, folder: Path) -> Blueprint:
        """Copy the files that front end and model need into a model's folder, so that it can be moved."""
        return replace(self, **{n: p.packed(folder) for n, p in vars(self).items() if hasattr(p, "packed")})

    def unpacked(self, folder: Path) -> Blueprint:
        """The blueprint of a model in `folder`, with the files that `packed` copied there."""
        parts = vars(self).items()
        return replace(self, **{n: p.unpacked(folder) for n, p in parts if hasattr(p, "unpacked")})


def open_blueprint(folder: str | Path) -> tuple[Path, Blueprint]:
    """The folder of the model in a run's or a model's folder, and its blueprint."""
    folder = Path(folder)
    folder = folder / "model" if (folder / "model" / MAIN).exists() else folder
    body = read_as(ModelFile, folder / MAIN)
    return folder, config.from_dict(Blueprint, body.blueprint, str(folder / MAIN)).unpacked(folder)


@dataclass(frozen=True)
class Recognizer:
    """Turns samples into text: `Recognizer.load("out/dga").transcribe("hello.wav")`."""

    blueprint: Blueprint
    tokens: Tokens
    model: Model

    def save(self, folder: Path, notes: Mapping[str, Any] | None = None) -> None:
        """Write model.json (with the caller's notes), model.safetensors and the tokens."""
        with filled_folder(folder, MAIN) as made:
            save_parameters(self.model, made / "model.safetensors")
            self.tokens.save(made)
            blueprint = config.to_dict(self.blueprint.packed(made))
            body = {"format": ModelFile.format, "blueprint": blueprint, "notes": dict(notes or {})}
            write_json(made / MAIN, body, files_in(made))

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> Recognizer:
        """Open a model folder, or the model of a run."""
        chosen = find_device(device)
        folder, blueprint = open_blueprint(folder)
        tokens = load_tokens(folder)
        model = blueprint.build(tokens.size, str(folder / MAIN))
        load_parameters(model, folder / "model.safetensors")
        return cls(blueprint, tokens, model.to(chosen))

    @torch.inference_mode()
    def transcribe(self, audio: str | Path | np.ndarray) -> str:
        """The text of one recording: a file, or samples at 16 kHz, mono, between −1 and 1."""
        samples = audio if isinstance(audio, np.ndarray) else resample(*decode(read_whole(Path(audio))))
        if len(samples) < SAMPLE_RATE // 20:
            raise ValueError(f"too short to recognise: {len(samples)} samples")
        # As float16, like the features in the store that the model was trained on.
        frames = self.blueprint.frontend.load()(samples).astype(np.float16).astype(np.float32)
        device = next(self.model.parameters()).device
        self.model.eval()
        lengths = torch.tensor([len(frames)])
        no_tokens = torch.zeros(1, 0, dtype=torch.int64)
        batch = Batch(torch.from_numpy(frames)[None], lengths, no_tokens, torch.tensor([0]), (0,))
        return self.tokens.decode(self.model.greedy(batch.to(device))[0])
