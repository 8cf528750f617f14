"""Federated Pruning: clients train a small dense model; the server keeps the large one until the last phase.

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
| GenerateMask                  | `pruning_scores.choose`, `pruning_slices.remaining`                |
| FPTrain                       | a round of `inner` on the small model, with its server optimiser   |
| with / without mask refinement| `refine`: removed slices keep their values, or are set to 0        |

Until round `fine_tune_from` a new mask is made every `mask_every` rounds. Its sparsity grows to the target by
the schedule (pruning) and then stays there (refining). After that the server's model is the small one, and
rounds are those of `inner` (fine-tuning).

Deviations.
- The round of `inner` sees only the small model, so nothing moves removed weights: no momentum, no Adam step,
  no decay. Their moments in the server's optimiser are unchanged too, and are used again if they revive.
- Scores that need a momentum have none before the first round: nothing is removed until the second mask.
- The paper does not define the momentum of gradient magnitude (§2.2). It is the moving average of |Δ|, entry
  by entry, with Δ the aggregate of clients. Removed weights have Δ = 0, so their average falls (§2.3: "the
  masked regions will not have gradients and lose the ability of regrowth"). They come back only if the
  average of weights in use falls faster. Open in the paper: whether magnitudes are averaged (as here) or
  the average is measured, the factor, and whether an average goes on from mask to mask (as here).
- A step schedule begins at 0, as in Algorithm 1; its number of steps is our choice.
- Only models of the last phase can be a run's result: earlier ones have other sparsities or masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.pruning_scores import Allocation, ByWeight, Score, Unified, choose, num_kept
from antiphon.algorithms.pruning_slices import Pattern, Slices, WholeColumn, remaining, slices_of, weights_of
from antiphon.core import ALGORITHMS, Algorithm, Metrics, Pool, Tensors, WrapperState
from antiphon.server.run_context import RunContext
from antiphon.tasks.prunable_layers import EmbeddingLayer, LinearLayer, RecurrentLayer, check_structure
from antiphon.tasks.submodel import Submodel, SubmodelPool, expand, expand_parts, masked, shrink


def prunable_algorithm(algorithm: Any) -> Algorithm | None:
    """Return the algorithm for pruning the model of a finished run: that of the run; None: it was central.

    Parts with `is_for_whole_models` are left out, such as algorithms that compare or combine whole updates.
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
    """The target, from the first mask."""

    steps: ClassVar[int] = 0  # number of masks before the target is reached

    def __call__(self, target: float, mask: int) -> float:
        return target


@dataclass(frozen=True)
class StepSparsity:
    """From 0 to the target in equal steps, one for each mask."""

    steps: int = 4

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a sparsity grows in at least 1 step, not {self.steps}")

    def __call__(self, target: float, mask: int) -> float:
        return target * min(1.0, mask / self.steps)


@dataclass(frozen=True)
class PrunedState(WrapperState):
    """The inner state, in full size until the last phase, and the submodel that clients get."""

    renamed: ClassVar = {"kept": "submodel"}
    submodel: str = ""  # type: ignore[misc]  # as `Submodel.write` writes it
    is_small: bool = False  # the last phase: the inner state is that of the small model
    sparsity: float = 0.0
    momentum: Tensors = field(default_factory=dict)  # of |Δ|, for weights whose score needs it

    @property
    def model(self) -> Tensors:
        return self.params if self.is_small else shrink(self.params, Submodel.read(self.submodel))

    @property
    def is_result(self) -> bool:
        return self.is_small


@ALGORITHMS.register
@dataclass(frozen=True)
class FederatedPruning:
    """An algorithm that makes the model smaller step by step; clients train the smaller model."""

    inner: Algorithm = FedAvg()
    sparsity: float = 0.5
    pattern: Pattern = WholeColumn()
    score: Score = ByWeight()
    allocation: Allocation = Unified()
    schedule: ConstantSparsity | StepSparsity = ConstantSparsity()
    mask_every: int = 10  # rounds from one mask to the next
    fine_tune_from: int = 40  # the round at which the server's model is made small
    refine: bool = True
    multiple: int = 1  # matrices keep a multiple of this many units: multiples of 8 or 16 are faster
    momentum: float = 0.9  # of the moving average of |Δ|
    layers: tuple[str, ...] = ("encoder.layers.*",)  # patterns of layer names that may lose units
    exclude: tuple[str, ...] = ("*.convolution.*",)  # patterns of those that may not
    structure: tuple[LinearLayer | RecurrentLayer | EmbeddingLayer, ...] = ()  # set when the run begins
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
        first = self.mask_every * max(self.schedule.steps, int(self.score.needs_momentum))
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
        """Take the layers of the model from the context."""
        return replace(self, structure=tuple(context.structure()))

    @property
    def slices(self) -> list[Slices]:
        """The slices of all layers that `layers` names and `exclude` does not."""
        return slices_of(self.structure, self.layers, self.exclude, self.pattern)

    @property
    def needs_weights(self) -> str:
        """Why the size of the small model depends on the weights, or an empty text if it does not."""
        if self.allocation != Unified():
            return "adaptive sparsity depends on the weights"
        paired = {layer.name for layer in self.structure if isinstance(layer, LinearLayer) and layer.feeds}
        if self.pattern.is_half and paired & {group.layer for group in self.slices}:
            return "with half patterns, the number of hidden units that are left depends on the weights"
        return ""

    def init(self, params: Tensors) -> PrunedState:
        check_structure(self.structure, params)
        slices = self.slices
        densities = self.allocation.densities(slices, params, self.sparsity)
        for group, density in zip(slices, densities, strict=True):
            num_kept(group, density)  # ValueError if nothing would be left
        return PrunedState(self.inner.init(params))

    def keep(self, params: Tensors, sparsity: float, momentum: Tensors | None = None) -> Submodel:
        """Return the submodel at a sparsity; scored by the weights while there is no momentum."""
        slices = self.slices
        score = self.score if momentum else ByWeight(self.score.norm)
        masks = choose(slices, params, momentum or {}, score, self.allocation, sparsity, self.multiple)
        return remaining(slices, masks).submodel(self.structure)

    def round(self, state: PrunedState, cohort: Sequence[str], pool: Pool) -> tuple[PrunedState, Metrics]:
        if not self.structure:
            raise ValueError("pruning does not know the model's layers: call run_context.prepare first")
        state, revived = self._with_mask(state)
        submodels = SubmodelPool(pool, state.submodel)
        submodel = Submodel.read(state.submodel)
        small = state.inner if state.is_small else shrink_state(state.inner, state.params, submodel)
        after, metrics = self.inner.round(small, cohort, submodels)
        metrics = {**metrics, "sparsity": state.sparsity, "revived_weights": float(revived)}
        if state.is_small:
            return replace(state, inner=after), metrics
        # The large state has the new values of the small one; removed entries are unchanged.
        momentum = self._momentum(state, submodel, submodels.aggregate) if self.score.needs_momentum else {}
        inner = expand_state(after, state.inner, state.params, submodel)
        large = replace(state, inner=inner, momentum=momentum)
        if large.round < self.fine_tune_from:
            return large, metrics
        inner = shrink_state(large.inner, large.params, submodel)  # the last phase: only the small model
        return replace(large, inner=inner, is_small=True, momentum={}), metrics

    def _with_mask(self, state: PrunedState) -> tuple[PrunedState, int]:
        """Return the state with a new mask if one is due, and how many weights the mask revives."""
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

    def _momentum(self, state: PrunedState, submodel: Submodel, delta: Tensors) -> Tensors:
        """Return the moving average of |Δ|; Δ is 0 for removed weights."""
        weights = weights_of(state.params, self.slices)
        zeros = {name: torch.zeros_like(p) for name, p in weights.items()}
        sizes = {n: delta[n].abs() for n in shrink(zeros, submodel) if n in delta}
        before, now = state.momentum or zeros, expand(sizes, submodel, zeros)
        return {name: before[name].lerp(size, 1 - self.momentum) for name, size in now.items()}


def num_revived(params: Tensors, slices: Sequence[Slices], before: Submodel, now: Submodel) -> int:
    """Return the number of weights that were removed before and are not now."""
    ones = {name: torch.ones_like(p) for name, p in weights_of(params, slices).items()}
    old, new = masked(ones, before), masked(ones, now)
    return sum(int((new[name] > old[name]).sum()) for name in ones)


def shrink_state(state: Any, model: Tensors, submodel: Submodel) -> Any:
    """Return a state of any algorithm in which every group of tensors shaped like the model is small."""
    return _map_groups(state, state, model, lambda group, _: shrink(group, submodel))


def expand_state(state: Any, before: Any, model: Tensors, submodel: Submodel) -> Any:
    """Invert `shrink_state`: removed entries are as they were before, or 0 where there was nothing."""
    small = shrink(model, submodel)
    return _map_groups(state, before, small, lambda group, old: expand_parts(group, submodel, model, old))


def _map_groups(
    state: Any, before: Any, model: Tensors, change: Callable[[Tensors, Tensors], Tensors]
) -> Any:
    """Change every dict of tensors shaped like the model; `before` has the same structure as the state."""

    def changed(value: Any, old: Any) -> Any:
        return _map_groups(value, old, model, change)

    if is_dataclass(state) and not isinstance(state, type):
        values = {f.name: getattr(state, f.name) for f in fields(state)}
        return replace(state, **{n: changed(v, getattr(before, n, None)) for n, v in values.items()})
    if isinstance(state, dict):
        old = before if isinstance(before, dict) else {}
        if _is_like(state, model):
            return change(state, old)
        return {key: changed(value, old.get(key)) for key, value in state.items()}
    if isinstance(state, tuple):
        olds = before if isinstance(before, tuple) else ()
        return tuple(changed(v, olds[i] if i < len(olds) else None) for i, v in enumerate(state))
    return state


def _is_like(tensors: dict[Any, Any], model: Tensors) -> bool:
    """Return whether all are named and shaped like parameters of a model ("part/name" counts as "name")."""

    def fits(name: Any, value: Any) -> bool:
        parameter = model.get(str(name).rpartition("/")[2])
        return isinstance(value, Tensor) and parameter is not None and parameter.shape == value.shape

    return bool(tensors) and all(fits(name, value) for name, value in tensors.items())
