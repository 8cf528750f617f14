"""Makes models smaller: what would be removed from one, and a run that prunes the model of another run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from antiphon import config
from antiphon.algorithms.fedavg import hierarchical
from antiphon.algorithms.pruning import FederatedPruning, prunable_algorithm
from antiphon.algorithms.pruning_scores import Unified
from antiphon.algorithms.pruning_slices import moving
from antiphon.core import Tensors, size_in_bytes
from antiphon.data.partition import Iid
from antiphon.engine import Rounds
from antiphon.experiment.settings import Experiment, Run
from antiphon.models import las, transducer
from antiphon.models.las import LasConfig
from antiphon.models.reduced import structure_of
from antiphon.models.transducer import TransducerConfig
from antiphon.recipes.single_algorithm import LOCAL, SERVER
from antiphon.recognizer import Recognizer
from antiphon.tasks.submodel import shrink

# On 80 log-mel filters and 500 tokens; their layers do not depend on either.
PRESETS: dict[str, LasConfig | TransducerConfig] = {
    "las-small": las.SMALL,
    "las-medium": las.MEDIUM,
    "las-published": las.PUBLISHED,
    "transducer-small": transducer.SMALL,
    "transducer-medium": transducer.MEDIUM,
    "transducer-published": transducer.PUBLISHED,
}
FILTERS, TOKENS = 80, 500


@dataclass(frozen=True)
class PlannedWeight:
    """One matrix: its shape, outputs by inputs, and the shapes of what is kept of it."""

    name: str
    shape: tuple[int, ...]
    kept: tuple[tuple[int, ...], ...]

    @property
    def num_weights(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def num_kept(self) -> int:
        return sum(rows * columns for rows, columns in self.kept)


@dataclass(frozen=True)
class Plan:
    """What pruning would leave of a model; bytes are those of all its parameters."""

    weights: tuple[PlannedWeight, ...]
    bytes_before: int
    bytes_after: int

    @property
    def zero_ratio(self) -> float:
        """Share of the weights that may be removed which would be: Table 1 of the paper."""
        return 1 - sum(w.num_kept for w in self.weights) / sum(w.num_weights for w in self.weights)


def open_model(name: str) -> tuple[FederatedPruning, Tensors]:
    """Settings for a model's layers, and its parameters: a folder's, or zeros in the shapes of a preset."""
    if name in PRESETS:
        with torch.device("meta"):
            model = PRESETS[name].build(FILTERS, TOKENS)
        params = {n: torch.zeros(()).expand(p.shape) for n, p in model.named_parameters()}
        return FederatedPruning(structure=structure_of(model)), params
    if not Path(name).exists():
        raise config.unknown(name, PRESETS, "", "model (and there is no such folder)")
    recognizer = Recognizer.load(name)
    recognizer.blueprint.whole_model()
    params = {n: p.detach() for n, p in recognizer.model.named_parameters()}
    return FederatedPruning(structure=structure_of(recognizer.model)), params


def plan(model: str, sparsity: float, settings: Sequence[str] = ()) -> Plan:
    """What is kept of a model at a sparsity; nothing is trained."""
    whole, params = open_model(model)
    pruning = config.override(whole, [f"sparsity={sparsity}", *settings])
    if pruning.allocation != Unified() and model in PRESETS:
        raise ValueError("adaptive sparsity goes by the weights: give the folder of a trained model")
    pruning.init(params)
    submodel = pruning.keep(params, sparsity)
    pieces = submodel.pieces(params)
    weights = []
    for name, full in moving(params, pruning.slices).items():
        shapes = [tuple(piece.of(full).shape) for piece in pieces[name]] if name in pieces else []
        weights.append(PlannedWeight(name, tuple(full.shape), tuple(shapes or [tuple(full.shape)])))
    return Plan(tuple(weights), size_in_bytes(params), size_in_bytes(shrink(params, submodel)))


def pruned_experiment(
    run: Path, sparsity: float, rounds: int, settings: Sequence[str] = ()
) -> tuple[Experiment, Path]:
    """An experiment whose one run, `pruned`, makes the model of a finished run smaller; and its corpus."""
    about = run.resolve().parent / "experiment.json"
    if not about.exists():
        raise ValueError(f"{run} is not the folder of a run: there is no {about}")
    body = json.loads(about.read_text())
    experiment = config.from_dict(Experiment, body["config"])
    if run.name not in experiment.runs:
        raise config.unknown(run.name, experiment.runs, "", "run")
    before = experiment.runs[run.name]
    inner = prunable_algorithm(before.algorithm) or hierarchical(LOCAL, SERVER)
    pruning = FederatedPruning(inner, fine_tune_from=max(1, rounds // 2), mask_every=max(1, rounds // 8))
    pruning = config.override(pruning, [f"sparsity={sparsity}", *settings])
    is_central = prunable_algorithm(before.algorithm) is None and before.clients == Iid(1)
    after = Run(
        pruning,
        _speakers(experiment) if is_central else before.data,
        Run().clients if is_central else before.clients,
        str(run.resolve()),
        replace(Rounds() if is_central else before.rounds, total=rounds),
    )
    return replace(experiment, recipe="prune", runs={"pruned": after}), Path(body["data"])


def _speakers(experiment: Experiment) -> str:
    """Whose speech a federated run takes after a central one: everybody's where no clients are apart."""
    return "both" if experiment.speakers.seed_fraction == 1.0 else "federated"
