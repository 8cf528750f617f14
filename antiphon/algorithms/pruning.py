"""Federated Pruning: clients train a small dense model, the server keeps the large one until it knows enough.

R. Lin, Y. Xiao, T.-J. Yang, D. Zhao, L. Xiong, G. Motta, F. Beaufays, "Federated Pruning: Improving Neural
Network Efficiency with Federated Learning", Interspeech 2022: Algorithm 1. Patterns are in `pruning_slices`,
scores and adaptive sparsity in `pruning_scores`.

| paper                         | here                                                               |
| ----------------------------- | ------------------------------------------------------------------ |
| w^r, M                        | state.params, state.submodel                                       |
| S, s                          | `sparsity`, state.sparsity                                         |
| ΔR, R^fine-tune               | `mask_every`, `fine_tune_from`; R^end is the run's number of rounds |
| Shrink, Expand                | `antiphon.tasks.submodel`                                          |
| GetImportanceScore            | `score`                                                            |
| GenerateMask                  | `pruning_scores.choose`, `pruning_slices.left`                     |
| FPTrain                       | a round of `inner` on the small model: its server optimiser too    |
| with / without mask refinement| `refine`: removed slices keep their values, or are set to 0        |

Until round `fine_tune_from` the mask is made anew every `mask_every` rounds, at a sparsity that the schedule
lets grow to its target (pruning) and that then stays there (refining). After that the server's model is the
small one, and rounds are those of `inner` (fine-tuning).

Deviations.
- The round of `inner` sees nothing but the small model, so what is removed is moved by nothing: no momentum,
  no Adam step, no decay. Slots of the server's optimiser rest with their weights, and go on if they revive.
- Scores that need a momentum have none before the first round: nothing is removed until the next mask.
- A step schedule begins at 0, as in Algorithm 1; its number of steps is ours.
- Only models of the last phase can be a run's result: those before have other sparsities, or masks to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.pruning_scores import Allocation, ByWeight, Score, Unified, choose, num_kept
from antiphon.algorithms.pruning_slices import Pattern, Slices, WholeColumn, cut, left, moving
from antiphon.core import ALGORITHMS, Algorithm, Metrics, Pool, Tensors, Update, WrapperState
from antiphon.server.run_context import RunContext
from antiphon.tasks.prunable_layers import EmbeddingLayer, LinearLayer, RecurrentLayer, check_structure
from antiphon.tasks.submodel import Submodel, SubmodelPool, expand, expand_parts, masked, shrink


def prunable_algorithm(algorithm: Any) -> Algorithm | None:
    """How clients train when the model of a finished run is pruned: as in that run; None: not federated.

    Parts with `is_for_whole_models` are left out, such as rules that compare or combine whole updates.
    """
    if getattr(algorithm, "trains_on_server", False):
        return None
    if not hasattr(algorithm, "inner"):
        trained: Algorithm = algorithm
        return trained
    inner = prunable_algorithm(algorithm.inner)
    if inner is None or getattr(algorithm, "is_for_whole_models", False):
        return inner
    return cast("Algorithm", replace(algorithm, inner=inner))


@dataclass(frozen=True)
class ConstantSparsity:
    """The target from the first mask on."""

    num_masks = 0  # before the target is reached

    def __call__(self, target: float, mask: int) -> float:
        return target


@dataclass(frozen=True)
class StepSparsity:
    """From 0 to the target in equal steps, one a mask."""

    steps: int = 4

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a sparsity grows in at least 1 step, not {self.steps}")

    @property
    def num_masks(self) -> int:
        return self.steps

    def __call__(self, target: float, mask: int) -> float:
        return target * min(1.0, mask / self.steps)


@dataclass(frozen=True)
class PrunedState(WrapperState):
    """The inner algorithm's state, in full size until the last phase, and what clients get of its model."""

    renamed: ClassVar = {"kept": "submodel"}
    submodel: str = ""  # as `Submodel.write` writes it
    is_small: bool = False  # the last phase: the inner state is of what is kept and nothing else
    sparsity: float = 0.0
    momentum: Tensors = field(default_factory=dict)  # of Δ, for the weights that are scored by it

    @property
    def model(self) -> Tensors:
        return self.params if self.is_small else shrink(self.params, Submodel.read(self.submodel))

    @property
    def is_result(self) -> bool:
        return self.is_small


@ALGORITHMS.register
@dataclass(frozen=True)
class FederatedPruning:
    """An algorithm whose clients train a model that gets smaller, and in the end is."""

    inner: Algorithm = FedAvg()
    sparsity: float = 0.5
    pattern: Pattern = WholeColumn()
    score: Score = ByWeight()
    allocation: Allocation = Unified()
    schedule: ConstantSparsity | StepSparsity = ConstantSparsity()
    mask_every: int = 10  # rounds from one mask to the next
    fine_tune_from: int = 40  # the round at which the server's model is made small
    refine: bool = True
    multiple: int = 1  # units of a matrix are kept in multiples of this: products of 8 or 16 are faster
    momentum: float = 0.9  # of the moving average of Δ
    layers: tuple[str, ...] = ("encoder.layers.*",)  # patterns of names of layers that may lose units …
    exclude: tuple[str, ...] = ("*.convolution.*",)  # … and of those among them that may not
    structure: tuple[LinearLayer | RecurrentLayer | EmbeddingLayer, ...] = ()  # known when the run begins
    effect: ClassVar[str] = "reshapes"
    is_for_whole_models: ClassVar[bool] = True
    refuses: ClassVar = {"reshapes": "a model is pruned once"}
    renamed: ClassVar = {"every": "mask_every", "spared": "exclude"}

    def __post_init__(self) -> None:
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity is a share of at least 0 and below 1, not {self.sparsity}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, not {self.momentum}")
        for name, value in (("mask_every", self.mask_every), ("multiple", self.multiple)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        first = self.mask_every * max(self.schedule.num_masks, int(self.score.needs_momentum))
        if first >= self.fine_tune_from:
            raise ValueError(
                f"the target sparsity is reached in round {first}: "
                f"fine_tune_from must be above that, not {self.fine_tune_from}"
            )

    def check_run(self, run: Any) -> None:
        """Refuse a run that ends before its model is made small."""
        if run.rounds.total < self.fine_tune_from:
            raise ValueError(
                f"rounds.total is {run.rounds.total}, so the model would never be made small: "
                f"fine_tune_from is {self.fine_tune_from}"
            )

    def prepare(self, context: RunContext) -> FederatedPruning:
        """Learn the layers of the model."""
        return replace(self, structure=tuple(context.structure()))

    @property
    def slices(self) -> list[Slices]:
        """All that is ranked: of the layers that a pattern names and none excludes."""
        names = [layer.name for layer in self.structure]
        for pattern in self.layers:
            if not any(fnmatchcase(name, pattern) for name in names):
                known = ", ".join(names[:5])
                raise ValueError(f"layers: {pattern!r} matches no layer that can be pruned: {known} …")
        chosen = [layer for layer in self.structure if self._is_prunable(layer.name)]
        if not chosen:
            raise ValueError(f"layers {', '.join(self.layers)} are all excluded: there is nothing to prune")
        return cut(chosen, self.pattern)

    def _is_prunable(self, name: str) -> bool:
        asked = any(fnmatchcase(name, pattern) for pattern in self.layers)
        return asked and not any(fnmatchcase(name, pattern) for pattern in self.exclude)

    def init(self, params: Tensors) -> PrunedState:
        check_structure(self.structure, params)
        slices = self.slices
        densities = self.allocation.densities(slices, params, self.sparsity)
        for own, density in zip(slices, densities, strict=True):
            num_kept(own, density)  # refuses to leave nothing
        return PrunedState(self.inner.init(params))

    def keep(self, params: Tensors, sparsity: float, momentum: Tensors | None = None) -> Submodel:
        """What is kept of a model at a sparsity; before there is a momentum, by the weights."""
        slices = self.slices
        score = self.score if momentum else ByWeight(self.score.norm)
        kept = choose(slices, params, momentum or {}, score, self.allocation, sparsity, self.multiple)
        return left(slices, kept).submodel(self.structure)

    def round(self, state: PrunedState, cohort: Sequence[str], pool: Pool) -> tuple[PrunedState, Metrics]:
        if not self.structure:
            raise ValueError("pruning does not know the model's layers: call run_context.prepare first")
        state, revived = self._with_mask(state)
        submodels = SubmodelPool(pool, state.submodel)
        submodel = Submodel.read(state.submodel)
        small = state.inner if state.is_small else shrink_state(state.inner, state.params, submodel)
        after, metrics = self.inner.round(small, cohort, submodels)
        notes = {"sparsity": state.sparsity, "revived_weights": float(revived)}
        if state.is_small:
            return replace(state, inner=after), {**metrics, **notes}
        grown = self._grown(state, after, submodels.aggregate)
        ready = grown.round == self.fine_tune_from
        return self._shrunk(grown) if ready else grown, {**metrics, **notes}

    def _with_mask(self, state: PrunedState) -> tuple[PrunedState, int]:
        """The state with a new mask if it is time for one, and how many weights that brings back."""
        is_known = bool(state.momentum) or not self.score.needs_momentum
        if state.is_small or state.round % self.mask_every or not is_known:
            return state, 0
        sparsity = self.schedule(self.sparsity, state.round // self.mask_every)
        submodel = self.keep(state.params, sparsity, state.momentum)
        revived = num_revived(state.params, self.slices, Submodel.read(state.submodel), submodel)
        after = replace(state, submodel=submodel.write(), sparsity=sparsity)
        if not self.refine:
            momentum = masked(state.momentum, submodel)
            after = replace(after.with_params(masked(state.params, submodel)), momentum=momentum)
        return after, revived

    def _grown(self, state: PrunedState, after: Any, aggregate: Update | None) -> PrunedState:
        """The large model with the small one's new values in it; all else as it was."""
        submodel = Submodel.read(state.submodel)
        inner = expand_state(after, state.inner, state.params, submodel)
        delta = aggregate.mean if aggregate is not None else {}
        momentum = self._momentum(state, submodel, delta) if self.score.needs_momentum else {}
        return replace(state, inner=inner, momentum=momentum)

    def _momentum(self, state: PrunedState, submodel: Submodel, delta: Tensors) -> Tensors:
        """The moving average of Δ; of what is removed, the one it had."""
        weights = moving(state.params, self.slices)
        before = state.momentum or {name: torch.zeros_like(p) for name, p in weights.items()}
        news = shrink(before, submodel)
        told = {n: m.lerp(delta[n], 1 - self.momentum) for n, m in news.items() if n in delta}
        return expand(told, submodel, before)

    def _shrunk(self, state: PrunedState) -> PrunedState:
        """The last phase: nothing is left of what was removed."""
        inner = shrink_state(state.inner, state.params, Submodel.read(state.submodel))
        return replace(state, inner=inner, is_small=True, momentum={})


def num_revived(params: Tensors, slices: Sequence[Slices], before: Submodel, now: Submodel) -> int:
    """Weights that were removed and no longer are."""
    ones = {name: torch.ones_like(p) for name, p in moving(params, slices).items()}
    old, new = masked(ones, before), masked(ones, now)
    return sum(int((new[name] > old[name]).sum()) for name in ones)


def shrink_state(state: Any, model: Tensors, submodel: Submodel) -> Any:
    """A state of any algorithm, with every group of tensors that is shaped like the model made small."""
    if is_dataclass(state) and not isinstance(state, type):
        parts = {f.name: shrink_state(getattr(state, f.name), model, submodel) for f in fields(state)}
        return replace(state, **parts)
    if isinstance(state, dict):
        if _is_like(state, model):
            return shrink(state, submodel)
        return {key: shrink_state(value, model, submodel) for key, value in state.items()}
    return tuple(shrink_state(v, model, submodel) for v in state) if isinstance(state, tuple) else state


def expand_state(state: Any, before: Any, model: Tensors, submodel: Submodel) -> Any:
    """The inverse of `shrink_state`: what was removed is as it was before, or 0 where there was nothing."""
    return _expand_state(state, before, model, shrink(model, submodel), submodel)


def _expand_state(state: Any, before: Any, model: Tensors, small: Tensors, submodel: Submodel) -> Any:
    def expanded(value: Any, old: Any) -> Any:
        return _expand_state(value, old, model, small, submodel)

    if is_dataclass(state) and not isinstance(state, type):
        values = {f.name: getattr(state, f.name) for f in fields(state)}
        return replace(state, **{n: expanded(v, getattr(before, n, None)) for n, v in values.items()})
    if isinstance(state, dict):
        old = before if isinstance(before, dict) else {}
        if _is_like(state, small):
            return expand_parts(state, submodel, model, old)
        return {key: expanded(value, old.get(key)) for key, value in state.items()}
    if isinstance(state, tuple):
        olds = before if isinstance(before, tuple) else ()
        return tuple(expanded(v, olds[i] if i < len(olds) else None) for i, v in enumerate(state))
    return state


def _is_like(tensors: dict[Any, Any], model: Tensors) -> bool:
    """Whether all are tensors of a model's parameters, by name and shape ("part/name" counts as "name")."""

    def fits(name: Any, value: Any) -> bool:
        parameter = model.get(str(name).rpartition("/")[2])
        return isinstance(value, Tensor) and parameter is not None and parameter.shape == value.shape

    return bool(tensors) and all(fits(name, value) for name, value in tensors.items())
