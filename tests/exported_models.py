"""Small recognisers with random parameters to export, and recordings for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from world import LETTERS, MODELS, tones

from antiphon.algorithms.pruning import FederatedPruning
from antiphon.algorithms.pruning_slices import HalfColumn
from antiphon.data.frontends import Filterbank, Frontend
from antiphon.data.tokens import Tokens
from antiphon.exporting.transcribe import Transcriber
from antiphon.models.blstm import BlstmConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.model import ModelConfig
from antiphon.models.reduced import ReducedConfig, structure_of
from antiphon.recognizer import Blueprint, Recognizer

FRONTEND = Filterbank(dim=8)
BLSTM = CtcConfig(BlstmConfig(dim=12, num_layers=2, stack=3))
TEXTS = ("ab", "abcde", "a c", "edcba abc e", "bad cab eec dab ace bed")


def pruned(config: ModelConfig) -> ReducedConfig:
    """Half of the units of the encoder are left, and of the decoder of LAS."""
    model = config.build(FRONTEND.dim, len(LETTERS) + 2)
    layers = ("encoder.layers.*", *(("cells.*", "combine", "embedding") if hasattr(model, "cells") else ()))
    pruning = FederatedPruning(pattern=HalfColumn(), layers=layers)
    params = {name: p.detach() for name, p in model.named_parameters()}
    return ReducedConfig(config, replace(pruning, structure=structure_of(model)).keep(params, 0.5))


CONFIGS: dict[str, Callable[[], ModelConfig]] = {
    "ctc": lambda: MODELS["ctc"],  # type: ignore[return-value]
    "ctc blstm": lambda: BLSTM,
    "transducer": lambda: MODELS["transducer"],  # type: ignore[return-value]
    "las": lambda: replace(MODELS["las"], decoder_layers=2),  # type: ignore[type-var, return-value]
    "pruned ctc": lambda: pruned(MODELS["ctc"]),  # type: ignore[arg-type]
    "pruned ctc blstm": lambda: pruned(BLSTM),
    "pruned las": lambda: pruned(MODELS["las"]),  # type: ignore[arg-type]
}


@dataclass(frozen=True)
class Case:
    """A recogniser and its exported folder."""

    recognizer: Recognizer
    run: Path
    folder: Path

    def transcriber(self, int8: bool = False) -> Transcriber:
        return Transcriber(self.folder, int8)


def random_recognizer(config: ModelConfig, frontend: Frontend, tokens: Tokens, seed: int = 3) -> Recognizer:
    """A recogniser with random parameters, large enough for different texts."""
    blueprint = Blueprint(frontend, config)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = blueprint.build(tokens.size)
        for parameter in model.parameters():
            parameter.mul_(1.5)
    model.eval()
    return Recognizer(blueprint, tokens, model)


def recording(text: str) -> np.ndarray:
    """Tones of a text: [samples] float32."""
    samples = tones(text, 1.0, np.random.default_rng(len(text)))
    return samples.astype(np.float32) / np.float32(32768)
