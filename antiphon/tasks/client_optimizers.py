"""The optimisers of clients: what a client does with the gradient of a local step.

FTL (Dimitriadis et al. 2020, §4) tried pairs of optimisers, one on the clients and one on the server, and
kept plain SGD on the clients. Momentum is that of torch.optim.SGD; Adam: Kingma and Ba, ICLR 2015,
arXiv:1412.6980, Algorithm 1; AdamW: Loshchilov and Hutter, ICLR 2019, arXiv:1711.05101, Algorithm 2.

| symbol      | here                                                                        |
| ----------- | --------------------------------------------------------------------------- |
| g           | `gradient`, after correction, proximal term and clipping                    |
| t           | `step`, 1 for the first step of a task                                      |
| m, v        | `moments`; they are zero before the first step of every task                |
| d           | the direction: the caller takes the step w ← w − η d, with η = `local.lr`   |
| β1, β2, ε   | `beta1`, `beta2`, `epsilon`                                                 |
| λ           | `weight_decay`                                                              |

Moments neither travel nor stay on the client: the model of a client's next task is another one (FTL §4).

Everything is computed entry by entry. So a tensor may be a parameter of one client, or a row of parameters
for each of many clients [n, width]; `step` is then a tensor [n, 1] of float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from antiphon.registry import Registry


class ClientOptimizer(Protocol):
    """A frozen dataclass: (parameter, gradient, moments, step) -> direction. It changes the moments only."""

    @property
    def num_moments(self) -> int:
        """How many tensors it keeps for each parameter during a task."""

    def direction(
        self, parameter: Tensor, gradient: Tensor, moments: Sequence[Tensor], step: int | Tensor
    ) -> Tensor: ...


# Settings of tasks come over a network, so only registered names and entry points are accepted.
CLIENT_OPTIMIZERS = Registry(
    "antiphon.client_optimizers", kind=ClientOptimizer, default="sgd", takes_paths=False
)


@CLIENT_OPTIMIZERS.register
@dataclass(frozen=True)
class ClientSgd:
    """Plain stochastic gradient descent, without moments."""

    choice: ClassVar[str] = "sgd"
    num_moments: ClassVar[int] = 0

    def direction(
        self, parameter: Tensor, gradient: Tensor, moments: Sequence[Tensor], step: int | Tensor
    ) -> Tensor:
        return gradient


@CLIENT_OPTIMIZERS.register
@dataclass(frozen=True)
class ClientMomentum:
    """SGD with momentum: m ← momentum · m + g, d = m."""

    momentum: float = 0.9
    choice: ClassVar[str] = "momentum"
    num_moments: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _check_shares(self, "momentum")

    def direction(
        self, parameter: Tensor, gradient: Tensor, moments: Sequence[Tensor], step: int | Tensor
    ) -> Tensor:
        return moments[0].mul_(self.momentum).add_(gradient)


@CLIENT_OPTIMIZERS.register
@dataclass(frozen=True)
class ClientAdam:
    """Adam: m ← β1 m + (1 − β1) g, v ← β2 v + (1 − β2) g², d = m / (1 − β1^t) / (√(v / (1 − β2^t)) + ε)."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    choice: ClassVar[str] = "adam"
    num_moments: ClassVar[int] = 2

    def __post_init__(self) -> None:
        _check_shares(self, "beta1", "beta2")
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be above 0, not {self.epsilon}")

    def direction(
        self, parameter: Tensor, gradient: Tensor, moments: Sequence[Tensor], step: int | Tensor
    ) -> Tensor:
        first, second = moments
        first.lerp_(gradient, 1 - self.beta1)
        second.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        root = (second / _correction(self.beta2, step, second)).sqrt_().add_(self.epsilon)
        return (first / _correction(self.beta1, step, first)).div_(root)


@CLIENT_OPTIMIZERS.register
@dataclass(frozen=True)
class ClientAdamW:
    """AdamW: the direction of Adam, plus λ w: the decay is not divided by the root of v."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    choice: ClassVar[str] = "adamw"
    num_moments: ClassVar[int] = 2

    def __post_init__(self) -> None:
        self._adam()
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must not be negative, not {self.weight_decay}")

    def _adam(self) -> ClientAdam:
        return ClientAdam(self.beta1, self.beta2, self.epsilon)

    def direction(
        self, parameter: Tensor, gradient: Tensor, moments: Sequence[Tensor], step: int | Tensor
    ) -> Tensor:
        direction = self._adam().direction(parameter, gradient, moments, step)
        return direction.add_(parameter, alpha=self.weight_decay)


def _check_shares(optimizer: object, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(optimizer, name) < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, not {getattr(optimizer, name)}")


def _correction(beta: float, step: int | Tensor, moment: Tensor) -> float | Tensor:
    """Return 1 − β^t, in float64 until the end: in float32, 1 − 0.999 has four digits only."""
    return 1 - beta**step if isinstance(step, int) else (1 - beta**step).to(moment.dtype)
