"""Tensors of a task by part: "control/encoder.weight" is part "control" of the parameter "encoder.weight"."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from antiphon.core import Tensors


def parameters_in(tensors: Tensors) -> Tensors:
    """Return the tensors that are parameters: those whose names have no "part/" before them."""
    return {name: tensor for name, tensor in tensors.items() if "/" not in name}


def part_of(tensors: Mapping[str, Tensor], part: str) -> Tensors:
    """Return the tensors called "part/name", as "name".

    >>> import torch
    >>> part_of({"control/w": torch.ones(1), "w": torch.zeros(1)}, "control")
    {'w': tensor([1.])}
    """
    prefix = f"{part}/"
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def as_part(tensors: Mapping[str, Tensor], part: str) -> Tensors:
    """Return the tensors with "part/" before their names: the inverse of `part_of`."""
    return {f"{part}/{name}": tensor for name, tensor in tensors.items()}
