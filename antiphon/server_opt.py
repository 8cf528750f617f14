"""The server optimiser as a pure function: (params, delta, opt) -> (params, opt).

The aggregated `delta` (old − new) plays the gradient of a torch optimiser (hierarchical optimisation:
FTL 2020 §2, DGA 2021 §2; "adaptive federated optimisation" in Reddi et al. 2021, arXiv:2003.00295).

| paper                        | here                                         |
| ---------------------------- | -------------------------------------------- |
| w                            | `params`                                     |
| Δ = w − Σ α_k w_k            | `delta`                                      |
| η (server)                   | `lr`, times the schedule's `scale`           |
| β1, β2, τ                    | `beta1`, `beta2`, `epsilon`                  |
| m, v                         | `opt["first"]`, `opt["second"]`              |

Opt state is a plain tree: {"step": int, "first": {name: Tensor}, "second": {name: Tensor}}. Nothing
given is changed and nothing returned shares memory with the state given, so two candidates can be
made from one state. `delta` may hold only some of the parameters (subspace training): the others are
returned as they are and have no state.

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

from antiphon.core import Tensors, norms_of
from antiphon.registry import Registry, open_kind

Opt = dict[str, Any]
Row = tuple[Tensor, ...]  # one tensor for each trained parameter, in the order of the delta


@dataclass(frozen=True)
class Sgd:
    """torch.optim.SGD. `Sgd()` is FedAvg's server: the new model is the mean of the clients'.

    With momentum it is BMUF's block momentum (Chen & Huo 2016): `lr` is the block learning rate ζ
    and `momentum` is η. `nesterov=False` is classical block momentum. `nesterov=True` is the Nesterov
    variant: the parameters returned are the look-ahead model θ + ηδ that the next block starts from.
    """

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _check(self)
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")

    def __call__(
        self, params: Tensors, delta: Tensors, opt: Opt | None, scale: float = 1.0
    ) -> tuple[Tensors, Opt]:
        old, grads = _pair(params, delta)
        state: Opt = {"step": _step(opt)}
        direction = grads
        if self.momentum:
            velocity = _velocity(grads, delta, opt, self.momentum)
            state["first"] = dict(zip(delta, velocity, strict=True))
            direction = velocity
            if self.nesterov:
                direction = torch._foreach_add(grads, velocity, alpha=self.momentum)
        new = torch._foreach_add(old, direction, alpha=-self.lr * scale)
        return _merge(params, delta, new), state


@dataclass(frozen=True)
class Adam:
    """torch.optim.Adam, with defaults for few, noisy steps instead of many small ones.

    `beta2` and `epsilon` are those of Reddi et al. (2021), `lr` that of Flower's FedYogi. A run has
    hundreds of rounds, too few for torch's second moment with its memory of 1,000 steps. A delta is
    not a gradient: its entries are client learning rates times gradients, and torch's epsilon of 1e-8
    would blow up entries no client really moved to full steps of noise. With epsilon = 1e-3 an entry
    moves by at most about `lr`, and by at most lr/epsilon = 10 times its mean delta.

    Flower's FedAdam adds its tau before the bias correction and corrects round r as if it were r+1; its
    round r is this with epsilon = tau / sqrt(1 − beta2^r) and `lr` rescaled (a test does exactly that).
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        _check(self)

    def __call__(
        self, params: Tensors, delta: Tensors, opt: Opt | None, scale: float = 1.0
    ) -> tuple[Tensors, Opt]:
        old, grads = _pair(params, delta)
        step, first, second = _adam_moments(grads, delta, opt, self.beta1, self.beta2)
        spread = _debiased_root(second, step, self.beta2, self.epsilon)
        size = self.lr * scale / (1 - self.beta1**step)
        new = torch._foreach_addcdiv(old, first, spread, value=-size)
        return _merge(params, delta, new), _state(step, delta, first, second)


@dataclass(frozen=True)
class Yogi:
    """FedYogi (Reddi et al. 2021, Algorithm 2): Adam whose second moment moves by at most (1−β2)Δ².

    No bias correction, as printed there. The second moment starts at 0, as in Flower's FedYogi; the
    paper asks for v ≥ τ² at the start, but with β1 = 0.9 and β2 = 0.99 the first step has the right
    size anyway: (1−β1) / sqrt(1−β2) = 1. Defaults as for `Adam`.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        _check(self)

    def __call__(
        self, params: Tensors, delta: Tensors, opt: Opt | None, scale: float = 1.0
    ) -> tuple[Tensors, Opt]:
        old, grads = _pair(params, delta)
        step = _step(opt)
        first = torch._foreach_lerp(_moment("first", grads, delta, opt), grads, 1 - self.beta1)
        before = _moment("second", grads, delta, opt)
        squares = torch._foreach_mul(grads, grads)
        sign = torch._foreach_sub(before, squares)
        torch._foreach_sign_(sign)
        second = torch._foreach_addcmul(before, squares, sign, value=-(1 - self.beta2))
        spread = torch._foreach_sqrt(second)
        torch._foreach_add_(spread, self.epsilon)
        new = torch._foreach_addcdiv(old, first, spread, value=-self.lr * scale)
        return _merge(params, delta, new), _state(step, delta, first, second)


@dataclass(frozen=True)
class Adagrad:
    """torch.optim.Adagrad, with the epsilon of Reddi et al. (2021); see `Adam` for why."""

    lr: float = 0.01
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        _check(self)

    def __call__(
        self, params: Tensors, delta: Tensors, opt: Opt | None, scale: float = 1.0
    ) -> tuple[Tensors, Opt]:
        old, grads = _pair(params, delta)
        second = torch._foreach_addcmul(_moment("second", grads, delta, opt), grads, grads)
        spread = torch._foreach_sqrt(second)
        torch._foreach_add_(spread, self.epsilon)
        new = torch._foreach_addcdiv(old, grads, spread, value=-self.lr * scale)
        return _merge(params, delta, new), {
            "step": _step(opt),
            "second": dict(zip(delta, second, strict=True)),
        }


@dataclass(frozen=True)
class Lamb:
    """LAMB (You et al. 2020, arXiv:1904.00962, Algorithm 2): Adam's direction, scaled to each tensor's norm.

    Both moments are debiased, φ is the identity, and every tensor is one layer; a tensor whose norm
    or direction is zero takes Adam's step (ratio 1), else a zero bias could never leave zero. A round
    moves a tensor by `lr` of its norm. timm's Lamb agrees when given `always_adapt=True` (without
    weight decay it otherwise skips the ratio) and `max_grad_norm=None` (it otherwise clips).
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-6
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self)

    def __call__(
        self, params: Tensors, delta: Tensors, opt: Opt | None, scale: float = 1.0
    ) -> tuple[Tensors, Opt]:
        old, grads = _pair(params, delta)
        step, first, second = _adam_moments(grads, delta, opt, self.beta1, self.beta2)
        direction = torch._foreach_div(first, _debiased_root(second, step, self.beta2, self.epsilon))
        torch._foreach_div_(direction, 1 - self.beta1**step)
        if self.weight_decay:
            torch._foreach_add_(direction, old, alpha=self.weight_decay)
        ratios = [w / u if w and u else 1.0 for w, u in zip(norms_of(old), norms_of(direction), strict=True)]
        torch._foreach_mul_(direction, [-self.lr * scale * ratio for ratio in ratios])
        torch._foreach_add_(direction, old)
        return _merge(params, delta, direction), _state(step, delta, first, second)


@dataclass(frozen=True)
class Lars:
    """LARS (You et al. 2017, arXiv:1708.03888, Algorithm 1): momentum SGD with a rate for each tensor.

    The local rate is trust · ‖w‖ / (‖Δ‖ + weight_decay · ‖w‖), and 1 when either norm is zero, which
    for lr 1 is FedAvg's step. Deviation: the paper puts `lr` inside the momentum; here it multiplies the
    momentum, as in torch.optim.SGD and timm, so a schedule acts at once. The same for a constant `lr`.
    """

    lr: float = 1.0
    momentum: float = 0.9
    trust: float = 0.001
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self)

    def __call__(
        self, params: Tensors, delta: Tensors, opt: Opt | None, scale: float = 1.0
    ) -> tuple[Tensors, Opt]:
        old, grads = _pair(params, delta)
        rates = [
            self.trust * w / (g + self.weight_decay * w) if w and g else 1.0
            for w, g in zip(norms_of(old), norms_of(grads), strict=True)
        ]
        if self.weight_decay:
            grads = torch._foreach_add(grads, old, alpha=self.weight_decay)
        velocity = _velocity(torch._foreach_mul(grads, rates), delta, opt, self.momentum)
        new = torch._foreach_add(old, velocity, alpha=-self.lr * scale)
        return _merge(params, delta, new), {
            "step": _step(opt),
            "first": dict(zip(delta, velocity, strict=True)),
        }


class ServerOptimizer(Protocol):
    """A frozen dataclass: (params, delta, opt, scale) -> (params, opt). Nothing it is given changes."""

    @property
    def lr(self) -> float: ...
    def __call__(
        self, params: Tensors, delta: Tensors, opt: Opt | None, scale: float = 1.0
    ) -> tuple[Tensors, Opt]: ...


SERVER_OPTIMIZERS = open_kind(
    ServerOptimizer,
    Registry("antiphon.server_optimizers", ("lr", "__call__"), homes=["antiphon.server_opt"], default="sgd"),
)
for optimizer in (Sgd, Adam, Yogi, Adagrad, Lamb, Lars):
    SERVER_OPTIMIZERS.register(optimizer)


def _check(optimizer: ServerOptimizer) -> None:
    for name, value in vars(optimizer).items():
        if name == "lr" and not value > 0:
            raise ValueError(f"lr must be above 0, not {value}")
        if name in ("momentum", "beta1", "beta2") and not 0 <= value < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, not {value}")
        if not value >= 0:
            raise ValueError(f"{name} must be 0 or more, not {value}")


def _pair(params: Tensors, delta: Tensors) -> tuple[Row, Row]:
    """The trained parameters and their delta, as two rows in the order of `delta`."""
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
    return tuple(params[name] for name in delta), tuple(delta.values())


def _merge(params: Tensors, delta: Tensors, new: Row) -> Tensors:
    return {**params, **dict(zip(delta, new, strict=True))}


def _state(step: int, delta: Tensors, first: Row, second: Row) -> Opt:
    return {
        "step": step,
        "first": dict(zip(delta, first, strict=True)),
        "second": dict(zip(delta, second, strict=True)),
    }


def _step(opt: Opt | None) -> int:
    return 1 if opt is None else int(opt["step"]) + 1


def _stored(kind: str, delta: Tensors, opt: Opt) -> Row:
    # One step count serves all tensors, so the set of trained parameters may not change in a run.
    held: Mapping[str, Tensor] = opt.get(kind, {})
    if held.keys() != delta.keys():
        raise ValueError(
            "the server optimiser's state is not for these parameters or not for this optimiser"
            f" ({kind!r} differs in {sorted(held.keys() ^ delta.keys())[:3]}): start with a new state"
        )
    return tuple(held[name] for name in delta)


def _moment(kind: str, grads: Row, delta: Tensors, opt: Opt | None) -> Row:
    return tuple(torch.zeros_like(grad) for grad in grads) if opt is None else _stored(kind, delta, opt)


def _velocity(grads: Row, delta: Tensors, opt: Opt | None, momentum: float) -> Row:
    if opt is None:
        return tuple(grad.clone() for grad in grads)
    velocity = torch._foreach_mul(_stored("first", delta, opt), momentum)
    torch._foreach_add_(velocity, grads)
    return velocity


def _adam_moments(
    grads: Row, delta: Tensors, opt: Opt | None, beta1: float, beta2: float
) -> tuple[int, Row, Row]:
    first = torch._foreach_lerp(_moment("first", grads, delta, opt), grads, 1 - beta1)
    second = torch._foreach_mul(_moment("second", grads, delta, opt), beta2)
    torch._foreach_addcmul_(second, grads, grads, value=1 - beta2)
    return _step(opt), first, second


def _debiased_root(second: Row, step: int, beta2: float, epsilon: float) -> Row:
    root = torch._foreach_sqrt(second)
    torch._foreach_div_(root, (1 - beta2**step) ** 0.5)
    torch._foreach_add_(root, epsilon)
    return root
