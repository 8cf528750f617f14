"""The server optimiser as a pure function: (params, delta, opt) -> (params, opt).

The aggregated `delta` (old − new) is used like the gradient of a torch optimiser (hierarchical optimisation:
FTL 2020 §2, DGA 2021 §2; "adaptive federated optimisation" in Reddi et al. 2021, arXiv:2003.00295).

| paper                        | here                                         |
| ---------------------------- | -------------------------------------------- |
| w                            | `params`                                     |
| Δ = w − Σ α_k w_k            | `delta`                                      |
| η (server)                   | `lr`, times the schedule's `scale`           |
| β1, β2, τ                    | `beta1`, `beta2`, `epsilon`                  |
| m, v                         | `opt["first"]`, `opt["second"]`              |

The state is a plain tree: {"step": int, "first": {name: Tensor}, "second": {name: Tensor}}. Arguments do not
change, and results share no memory with them, so two candidates can be made from one state. `delta` may hold
only some of the parameters (subspace training): the others are returned unchanged and have no state.

>>> params, delta = {"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([0.5, -0.25])}
>>> Sgd()(params, delta, None)[0]["w"]
tensor([0.5000, 1.2500])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from antiphon.core import Diverged, Tensors
from antiphon.registry import Registry
from antiphon.server.clipping import norms_of

Opt = dict[str, Any]
Row = tuple[Tensor, ...]  # one tensor for each trained parameter, in the order of the delta


class Moments:
    """The moments of one round, by kind: those before the step, and in `new` those after it."""

    def __init__(self, delta: Tensors, opt: Opt | None) -> None:
        self.delta, self.opt = delta, opt
        self.step = 1 if opt is None else int(opt["step"]) + 1
        self.new: dict[str, Row] = {}

    def old(self, kind: str) -> Row:
        """Return a moment before this round; zeros in the first round."""
        if self.opt is None:
            return tuple(torch.zeros_like(grad) for grad in self.delta.values())
        # All tensors have one step count, so the trained parameters must not change in a run.
        moment: Mapping[str, Tensor] = self.opt.get(kind, {})
        if moment.keys() != self.delta.keys():
            differs = sorted(moment.keys() ^ self.delta.keys())[:3]
            raise ValueError(
                "the server optimiser's state is not for these parameters or not for this optimiser"
                f" ({kind!r} differs in {differs}): start with a new state"
            )
        return tuple(moment[name] for name in self.delta)

    def velocity(self, grads: Row, momentum: float) -> Row:
        """Update the first moment as torch.optim.SGD does."""
        if self.opt is None:
            self.new["first"] = tuple(grad.clone() for grad in grads)
        else:
            self.new["first"] = torch._foreach_mul(self.old("first"), momentum)
            torch._foreach_add_(self.new["first"], grads)
        return self.new["first"]

    def first(self, grads: Row, beta1: float) -> Row:
        """Update the first moment as Adam does."""
        self.new["first"] = torch._foreach_lerp(self.old("first"), grads, 1 - beta1)
        return self.new["first"]

    def debiased_root(self, grads: Row, beta2: float, epsilon: float) -> Row:
        """Update the second moment as Adam does; return its debiased root, the divisor of the step."""
        self.new["second"] = torch._foreach_mul(self.old("second"), beta2)
        torch._foreach_addcmul_(self.new["second"], grads, grads, value=1 - beta2)
        root = torch._foreach_sqrt(self.new["second"])
        torch._foreach_div_(root, (1 - beta2**self.step) ** 0.5)
        torch._foreach_add_(root, epsilon)
        return root

    def root(self, second: Row, epsilon: float) -> Row:
        """Store the second moment of Yogi or Adagrad; return its root, the divisor of the step."""
        self.new["second"] = second
        root = torch._foreach_sqrt(second)
        torch._foreach_add_(root, epsilon)
        return root


class _Optimizer:
    """The common part of all optimisers: checks of settings, and the state around `_move`."""

    lr: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "lr" and not value > 0:
                raise ValueError(f"lr must be above 0, not {value}")
            if name in ("momentum", "beta1", "beta2") and not 0 <= value < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, not {value}")
            if not value >= 0:
                raise ValueError(f"{name} must be 0 or more, not {value}")

    def __call__(
        self, params: Tensors, delta: Tensors, opt: Opt | None, scale: float = 1.0
    ) -> tuple[Tensors, Opt]:
        _check_delta(params, delta)
        moments = Moments(delta, opt)
        old = tuple(params[name] for name in delta)
        try:
            new = self._move(old, tuple(delta.values()), moments, self.lr * scale)
            is_finite = bool(torch.stack(torch._foreach_norm(new)).isfinite().all())
        except RuntimeError as error:
            if "overflow" not in str(error):  # a factor of the step is too large for the type of a tensor
                raise
            is_finite = False
        if not is_finite:
            raise Diverged(
                "the server's optimiser made parameters that are NaN, infinite or too large, from updates "
                f"that are finite: lower its learning rate (server: {self}; the schedule's factor: {scale:g})"
            )
        state = {kind: dict(zip(delta, row, strict=True)) for kind, row in moments.new.items()}
        return {**params, **dict(zip(delta, new, strict=True))}, {"step": moments.step, **state}

    def _move(self, old: Row, grads: Row, moments: Moments, lr: float) -> Row:
        """Return the new parameters; store the moments in `moments.new`."""
        raise NotImplementedError

    def lasting_effect(self, step: int) -> float:
        """Return what a delta does in this and all later steps, divided by what it does in this step.

        Steps are counted from 1. To first order: rate, second moment and ratios of layers stay as they are.
        """
        return 1.0


def _with_bias_correction(beta1: float, step: int) -> float:
    """Return Σ_k β1^k / (1 − β1^(step+k)), the effects on steps `step` + k, divided by its first term.

    >>> [round(_with_bias_correction(0.9, step), 2) for step in (1, 2, 40)]
    [3.01, 4.24, 9.93]
    """
    total, share, number = 0.0, 1.0, step
    while share > 1e-12:
        total += share / (1 - beta1**number)
        share, number = share * beta1, number + 1
    return total * (1 - beta1**step)


@dataclass(frozen=True)
class Sgd(_Optimizer):
    """torch.optim.SGD. `Sgd()` is the server of FedAvg: the new model is the mean of the clients' models.

    With momentum it is BMUF's block momentum (Chen & Huo 2016): `lr` is the block learning rate ζ, `momentum`
    is η. With `nesterov` it returns the look-ahead model θ + ηδ, from which the next block starts.
    """

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")

    def _move(self, old: Row, grads: Row, moments: Moments, lr: float) -> Row:
        direction = moments.velocity(grads, self.momentum) if self.momentum else grads
        if self.nesterov:
            direction = torch._foreach_add(grads, direction, alpha=self.momentum)
        return torch._foreach_add(old, direction, alpha=-lr)

    def lasting_effect(self, step: int) -> float:
        return 1 / (1 - self.momentum) / (1 + self.nesterov * self.momentum)


@dataclass(frozen=True)
class Adam(_Optimizer):
    """torch.optim.Adam, with defaults for few, noisy steps instead of many small ones.

    `beta2` and `epsilon` are those of Reddi et al. (2021), `lr` that of Flower's FedYogi. A run has hundreds
    of rounds, too few for torch's second moment with its memory of 1,000 steps. Entries of a delta are
    gradients times client learning rates; torch's epsilon of 1e-8 would turn tiny ones into full steps of
    noise. With epsilon = 1e-3 an entry moves by at most about `lr`, and by at most lr/epsilon = 10 times its
    mean delta.

    Flower's FedAdam adds its tau before the bias correction and corrects round r as if it were r+1. Its round
    r is this one with epsilon = tau / sqrt(1 − beta2^r) and another `lr` (a test compares them).
    """

    lr: float = 0.01  # learning rate of the server
    beta1: float = 0.9  # share of the old first moment that is kept
    beta2: float = 0.99  # share of the old second moment that is kept
    epsilon: float = 1e-3  # a larger one makes smaller steps where deltas are small

    def _move(self, old: Row, grads: Row, moments: Moments, lr: float) -> Row:
        first = moments.first(grads, self.beta1)
        divisor = moments.debiased_root(grads, self.beta2, self.epsilon)
        return torch._foreach_addcdiv(old, first, divisor, value=-lr / (1 - self.beta1**moments.step))

    def lasting_effect(self, step: int) -> float:
        return _with_bias_correction(self.beta1, step)


@dataclass(frozen=True)
class Yogi(_Optimizer):
    """FedYogi (Reddi et al. 2021, Algorithm 2): Adam whose second moment changes by at most (1−β2)Δ².

    No bias correction, as in the paper. The second moment starts at 0, as in Flower's FedYogi. The paper asks
    for v ≥ τ² at the start, but with β1 = 0.9 and β2 = 0.99 the first step has the right size: (1−β1) /
    √(1−β2) = 1.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3

    def _move(self, old: Row, grads: Row, moments: Moments, lr: float) -> Row:
        first, before = moments.first(grads, self.beta1), moments.old("second")
        squares = torch._foreach_mul(grads, grads)
        sign = torch._foreach_sub(before, squares)
        torch._foreach_sign_(sign)
        second = torch._foreach_addcmul(before, squares, sign, value=-(1 - self.beta2))
        return torch._foreach_addcdiv(old, first, moments.root(second, self.epsilon), value=-lr)

    def lasting_effect(self, step: int) -> float:
        return 1 / (1 - self.beta1)


@dataclass(frozen=True)
class Adagrad(_Optimizer):
    """torch.optim.Adagrad, with the epsilon of Reddi et al. (2021), as in `Adam`."""

    lr: float = 0.01
    epsilon: float = 1e-3

    def _move(self, old: Row, grads: Row, moments: Moments, lr: float) -> Row:
        second = torch._foreach_addcmul(moments.old("second"), grads, grads)
        return torch._foreach_addcdiv(old, grads, moments.root(second, self.epsilon), value=-lr)


@dataclass(frozen=True)
class Lamb(_Optimizer):
    """LAMB (You et al. 2020, arXiv:1904.00962, Algorithm 2): Adam's direction, scaled to each tensor's norm.

    Both moments are debiased, φ is the identity, and every tensor is one layer. A tensor with a norm or
    direction of zero takes Adam's step (ratio 1): otherwise a zero bias would stay zero. A round moves a
    tensor by `lr` times its norm. timm's Lamb with `always_adapt=True` and `max_grad_norm=None` computes the
    same.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-6
    weight_decay: float = 0.0

    def _move(self, old: Row, grads: Row, moments: Moments, lr: float) -> Row:
        first = moments.first(grads, self.beta1)
        direction = torch._foreach_div(first, moments.debiased_root(grads, self.beta2, self.epsilon))
        torch._foreach_div_(direction, 1 - self.beta1**moments.step)
        if self.weight_decay:
            torch._foreach_add_(direction, old, alpha=self.weight_decay)
        ratios = [w / u if w and u else 1.0 for w, u in zip(norms_of(old), norms_of(direction), strict=True)]
        torch._foreach_mul_(direction, [-lr * ratio for ratio in ratios])
        torch._foreach_add_(direction, old)
        return direction

    def lasting_effect(self, step: int) -> float:
        return _with_bias_correction(self.beta1, step)


@dataclass(frozen=True)
class Lars(_Optimizer):
    """LARS (You et al. 2017, arXiv:1708.03888, Algorithm 1): momentum SGD with a rate for each tensor.

    The local rate is trust · ‖w‖ / (‖Δ‖ + weight_decay · ‖w‖), and 1 if a norm is zero, which for lr 1 is
    FedAvg's step. Deviation: `lr` multiplies the momentum, as in torch.optim.SGD and timm, so a schedule acts
    at once. In the paper it is inside the momentum, which is the same for a constant `lr`.
    """

    lr: float = 1.0
    momentum: float = 0.9
    trust: float = 0.001
    weight_decay: float = 0.0

    def _move(self, old: Row, grads: Row, moments: Moments, lr: float) -> Row:
        rates = [
            self.trust * w / (g + self.weight_decay * w) if w and g else 1.0
            for w, g in zip(norms_of(old), norms_of(grads), strict=True)
        ]
        if self.weight_decay:
            grads = torch._foreach_add(grads, old, alpha=self.weight_decay)
        velocity = moments.velocity(torch._foreach_mul(grads, rates), self.momentum)
        return torch._foreach_add(old, velocity, alpha=-lr)

    def lasting_effect(self, step: int) -> float:
        return 1 / (1 - self.momentum)


class ServerOptimizer(Protocol):
    """A frozen dataclass: (params, delta, opt, scale) -> (params, opt). It changes none of its arguments."""

    @property
    def lr(self) -> float: ...
    def __call__(
        self, params: Tensors, delta: Tensors, opt: Opt | None, scale: float = 1.0
    ) -> tuple[Tensors, Opt]: ...


SERVER_OPTIMIZERS = Registry("antiphon.server_optimizers", kind=ServerOptimizer, default="sgd")
for optimizer in (Sgd, Adam, Yogi, Adagrad, Lamb, Lars):
    SERVER_OPTIMIZERS.register(optimizer)


def _check_delta(params: Tensors, delta: Tensors) -> None:
    if not delta:
        raise ValueError("the delta is empty: no client's update arrived, so there is no step to take")
    for name, change in delta.items():
        if name not in params:
            raise ValueError(f"the delta holds {name!r}, which is no parameter of the model")
        if change.shape != params[name].shape:
            raise ValueError(
                f"the delta of {name!r} has shape {tuple(change.shape)},"
                f" but the parameter has shape {tuple(params[name].shape)}"
            )
