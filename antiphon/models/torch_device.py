"""The device that models run on, from its name."""

from __future__ import annotations

import torch


def find_device(name: str) -> torch.device:
    """Return the device called `name`, or raise an error that says which names there are.

    >>> find_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # the latter from a torch without CUDA
        raise ValueError(_no_device(name)) from None
    return device


def _no_device(name: str) -> str:
    number = torch.cuda.device_count()
    if not name.startswith("cuda"):
        return f"no device {name!r}: cpu, cuda, cuda:1 … or auto (--device; in Python: device=)"
    if number == 0:
        return f"no device {name!r}: no GPU was found; use --device cpu, or install a CUDA build of torch"
    last = f" to cuda:{number - 1}" if number > 1 else ""
    return f"no device {name!r}: this machine has cuda:0{last} (--device; in Python: device=)"
