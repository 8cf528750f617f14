"""Make the model of a finished run smaller, or show what would be left of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from antiphon import config
from antiphon.algorithms.fedavg import hierarchical
from antiphon.algorithms.pruning import FederatedPruning, prunable_algorithm
from antiphon.algorithms.pruning_slices import weights_of
from antiphon.core import Tensors, size_in_bytes
from antiphon.data.partition import Iid
from antiphon.engine import Rounds
from antiphon.experiment.runner import Scores, run_experiment
from antiphon.experiment.settings import Experiment, Run
from antiphon.models import las, transducer
from antiphon.models.las import LasConfig
from antiphon.models.reduced import structure_of
from antiphon.models.transducer import TransducerConfig
from antiphon.recipes.single_algorithm import LOCAL, SERVER
from antiphon.recognizer import Recognizer
from antiphon.records.listener import Listen
from antiphon.records.reading import read_as
from antiphon.records.run_files import ExperimentFile
from antiphon.tasks.submodel import shrink
from antiphon.workflows.arguments import (
    Names,
    Notify,
    Progress,
    names_of,
    no_messages,
    no_progress,
    screen_for,
)

# Built for 80 log-mel filters and 500 tokens; the prunable layers do not depend on either.
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
    """One matrix: its shape (outputs, inputs), and the shapes of the parts that are kept."""

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
    """The parts of a model that pruning would keep; bytes are those of all its parameters."""

    weights: tuple[PlannedWeight, ...]
    bytes_before: int
    bytes_after: int

    @property
    def zero_ratio(self) -> float:
        """The share of the prunable weights that would be removed: Table 1 of the paper."""
        return 1 - sum(w.num_kept for w in self.weights) / sum(w.num_weights for w in self.weights)


def prune(
    run: str | Path,
    out: str | Path,
    *,
    sparsity: float = 0.5,
    rounds: int = 40,
    settings: Names = (),
    data: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    federation: str | Path | None = None,
    site_timeout: float = 600.0,
    min_sites: int = 0,
    as_they_arrive: bool = False,
    feature_processes: int = 1,
    progress: Progress = no_progress,
    notify: Notify = no_messages,
    listeners: Sequence[Listen] = (),
) -> dict[str, Scores]:
    """Make a run's model smaller by Federated Pruning; the new run is `out`/pruned.

    Args:
        run: The folder of a finished run, such as out/dga.
        out: The folder for the pruned run and its report.
        sparsity: The share of each matrix's rows or columns to remove.
        rounds: The number of rounds, at least 2: half of them find the mask, half fine-tune.
        settings: Changes to the settings of the pruning, each written as path=value.
        data: A corpus folder; by default the corpus that the run was trained on.
        resume: Continue the run that is in `out`.
        device: cpu, cuda, cuda:1, or auto (the GPU if there is one).
        federation: The server's kit of a federation: the clients are at its sites, and `data` is the server's
            own corpus.
        site_timeout: The seconds that a site may take for one client before it counts as lost.
        min_sites: The number of sites that must join before the run begins; 0: all of them.
        as_they_arrive: Add the updates of sites as they arrive: this needs less memory, and results differ
            in their last bits.
        feature_processes: The number of processes that compute features.
        progress: A function that is called with (stage, steps done, number of steps).
        notify: A function that is called with each line for the user.
        listeners: Functions that are called with a `RunInfo` as the run begins, and return its `Listener`.

    Returns:
        The scores of the pruned run on the test speakers, by the name of the run.

    Example:
        scores = antiphon.prune("out/dga", "small", sparsity=0.3, rounds=20)
    """
    is_away = federation is not None
    experiment, corpus = pruned_experiment(Path(run), sparsity, rounds, settings, is_away)
    data, out = Path(data or corpus), Path(out)
    options = (resume, False, device, feature_processes, screen_for(progress, listeners, experiment, out))
    if federation is None:
        return run_experiment(experiment, data, out, *options)
    from antiphon.workflows.run_federation import SiteOptions, run_in_federation

    sites = SiteOptions(federation, site_timeout, min_sites, as_they_arrive, notify)
    return run_in_federation(experiment, data, out, *options, (), sites)


def plan_pruning(model: str | Path, *, sparsity: float = 0.5, settings: Names = ()) -> Plan:
    """Return what would be left of each weight of a model; nothing is trained.

    Args:
        model: The folder of a finished run, or the name of a preset such as las-small.
        sparsity: The share of each matrix's rows or columns to remove.
        settings: Changes to the settings of the pruning, each written as path=value.

    Example:
        plan = antiphon.plan_pruning("las-small", sparsity=0.5)
        print(plan.zero_ratio, plan.bytes_after)
    """
    whole, params = _open_model(str(model))
    pruning = config.override(whole, [f"sparsity={sparsity}", *names_of(settings)])
    if str(model) in PRESETS and (reason := pruning.needs_weights):
        raise ValueError(f"{reason}: name the folder of a trained model")
    pruning.init(params)
    submodel = pruning.keep(params, sparsity)
    pieces = submodel.pieces(params)
    weights = []
    for name, full in weights_of(params, pruning.slices).items():
        shapes = [tuple(piece.of(full).shape) for piece in pieces[name]] if name in pieces else []
        weights.append(PlannedWeight(name, tuple(full.shape), tuple(shapes or [tuple(full.shape)])))
    return Plan(tuple(weights), size_in_bytes(params), size_in_bytes(shrink(params, submodel)))


def _open_model(name: str) -> tuple[FederatedPruning, Tensors]:
    """Return settings that fit a model, and its parameters: those of a run, or zeros for a preset."""
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


def pruned_experiment(
    run: Path, sparsity: float, rounds: int, settings: Names, is_away: bool
) -> tuple[Experiment, Path]:
    """Return an experiment whose one run, `pruned`, prunes a finished run's model; and its corpus.

    If the clients are away, at the sites of a federation, they are all that train.
    """
    if rounds < 2:
        raise ValueError(f"pruning needs at least 2 rounds, not {rounds}: half of them fine-tune")
    about = run.resolve().parent / "experiment.json"
    if not about.exists():
        raise ValueError(f"{run} is not the folder of a run: there is no {about}")
    body = read_as(ExperimentFile, about)
    experiment = config.from_dict(Experiment, body.config, str(about))
    if run.name not in experiment.runs:
        raise config.unknown(run.name, experiment.runs, "", "run")
    before = experiment.runs[run.name]
    inner = prunable_algorithm(before.algorithm) or hierarchical(LOCAL, SERVER)
    pruning = FederatedPruning(inner, fine_tune_from=max(1, rounds // 2), mask_every=max(1, rounds // 8))
    pruning = config.override(pruning, [f"sparsity={sparsity}", *names_of(settings)])
    is_central = prunable_algorithm(before.algorithm) is None and before.clients == Iid(1)
    # After a central run, the federated clients train: everybody if no speaker is a client only.
    has_clients = is_away or experiment.speakers.seed_fraction < 1.0
    speakers = "federated" if has_clients else "both"
    after = Run(
        pruning,
        speakers if is_central else before.data,
        Run().clients if is_central else before.clients,
        rounds=replace(Rounds() if is_central else before.rounds, total=rounds),
        start_folder=str(run.resolve()),
        secure_aggregation=None if is_central else before.secure_aggregation,
    )
    return replace(experiment, recipe="prune", runs={"pruned": after}), Path(body.data)
