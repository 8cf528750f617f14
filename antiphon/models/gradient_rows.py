"""Where the gradients of stacked clients go: into rows like those of their parameters, without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor


class GradientRows:
    """Memory for gradients [n, width]: a gradient lies where its parameter lies in the rows of parameters.

    A kernel asks for the place of its parameter's gradient, and writes there. A parameter that is used twice
    has two gradients, which autograd adds up: the second one gets memory of its own.
    """

    def __init__(self, parameters: Tensor) -> None:
        self.parameters = parameters
        self._rows: Tensor | None = None
        self._given: set[int] = set()
        self._low: Tensor | None = None

    @property
    def rows(self) -> Tensor:
        """Made when the first gradient comes: the activations of the forward pass are there before."""
        if self._rows is None:
            self._rows = torch.empty_like(self.parameters)
        return self._rows

    def place(self, parameter: Tensor) -> Tensor:
        """Return memory for the gradient of a parameter of all clients [n, ...]."""
        offset = int(parameter.storage_offset())
        if not self._has(parameter) or offset in self._given:
            return torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        self._given.add(offset)
        return self._part(self.rows, parameter)

    def lower(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a parameter in another kind of numbers; the rows are converted once, as a whole."""
        if not self._has(parameter):
            return parameter.to(dtype)
        if self._low is None:
            self._low = self.parameters.to(dtype)
        return self._part(self._low, parameter)

    def _has(self, parameter: Tensor) -> bool:
        """Whether the parameter of all clients lies in the rows."""
        is_ours = parameter.untyped_storage().data_ptr() == self.parameters.untyped_storage().data_ptr()
        return is_ours and parameter.shape[0] == self.parameters.shape[0]

    def _part(self, rows: Tensor, parameter: Tensor) -> Tensor:
        offset = parameter.storage_offset() - self.parameters.storage_offset()
        return rows.as_strided(parameter.shape, parameter.stride(), offset)

    @property
    def is_used(self) -> bool:
        """Whether any gradient was written here."""
        return self._rows is not None


_current: ContextVar[GradientRows | None] = ContextVar("gradient rows", default=None)


@contextmanager
def gradients_to(rows: GradientRows) -> Iterator[None]:
    """In this context, the forward pass of stacked clients notes where gradients will go."""
    token = _current.set(rows)
    try:
        yield
    finally:
        _current.reset(token)


def current_gradients() -> GradientRows | None:
    """Return the rows for the gradients of the forward pass that runs now; its backward pass needs them."""
    return _current.get()
