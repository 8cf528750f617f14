"""How large the programs of the kernels of stacked clients should be: microseconds on a GPU, by size.

The tensors are those of `stacked_fused.py`: 64 clients with 4 utterances of 75 frames, 256 wide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from common import parse_arguments, print_table, write_result
from torch import Tensor

from antiphon.experiment.preparation import choose_device, device_name

CLIENTS, UTTERANCES, FRAMES, DIM, HEADS, TAPS = 64, 4, 75, 256, 4, 15
# Elements of a tile, rows that are summed, warps.
ROW_SIZES = [
    (2048, 32, 4),
    (1024, 32, 4),
    (512, 32, 4),
    (1024, 16, 4),
    (1024, 64, 4),
    (4096, 32, 8),
    (512, 16, 2),
]
# Frames and channels of a tile, warps.
TILES = [
    (128, 32, 8),
    (128, 32, 4),
    (32, 32, 1),
    (32, 32, 2),
    (64, 32, 4),
    (128, 64, 8),
    (128, 16, 4),
    (16, 64, 1),
]
BLOCKS = [(64, 8), (64, 4), (32, 4)]  # frames of a block, warps


def microseconds(work: Callable[[], Any]) -> float:
    for _ in range(3):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(10):
        work()
    end.record()
    torch.cuda.synchronize()
    return 100 * begin.elapsed_time(end)


def some(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def tried(
    label: str, module: Any, names: Sequence[str], sizes: Sequence[tuple[int, ...]], work: Callable[[], Any]
) -> list[list[str]]:
    """A row for each choice of a module's sizes; LayerNorm has some of those of `rows`."""
    from antiphon.models.kernels import norms

    before, found = [getattr(module, name) for name in names], []
    for values in sizes:
        for name, value in zip(names, values, strict=True):
            setattr(module, name, value)
            if label.startswith("norm") and hasattr(norms, name):
                setattr(norms, name, value)
        try:
            found.append([label, str(values), f"{microseconds(work):.1f}"])
        except Exception as error:
            found.append([label, str(values), type(error).__name__])
    for name, value in zip(names, before, strict=True):
        setattr(module, name, value)
        if label.startswith("norm") and hasattr(norms, name):
            setattr(norms, name, value)
    return found


def of_rows(low: torch.dtype, sizes: Sequence[tuple[int, ...]]) -> list[list[str]]:
    from antiphon.models.kernels import norms, rows

    total, names, short = CLIENTS * UTTERANCES * FRAMES, ("ELEMENTS", "SUMMED", "WARPS"), str(low)[6:]
    keys = torch.arange(CLIENTS * UTTERANCES, dtype=torch.int32, device="cuda")
    drop = rows.Drop(keys, FRAMES, 1, 0.1, (1, 2, 3))
    past, weight, bias = some(total, DIM), some(CLIENTS, DIM), some(CLIENTS, 4 * DIM)
    normal = (some(total, DIM), some(total), some(total))
    narrow, wide = some(total, DIM, dtype=low), some(total, 4 * DIM, dtype=low)
    works: dict[str, Callable[[], Any]] = {
        "norm gradient": lambda: norms.norm_gradient(narrow, normal, weight, weight, past),
        "activate gradient": lambda: rows.activate_gradient(wide, wide, bias, drop),
        "add gradient": lambda: rows.add_gradient(past, CLIENTS, 0.5, drop, low),
    }
    return [row for name, work in works.items() for row in tried(f"{name} {short}", rows, names, sizes, work)]


def of_convolution(low: torch.dtype, sizes: Sequence[tuple[int, ...]]) -> list[list[str]]:
    from antiphon.models.kernels import convolution

    total, names = CLIENTS * UTTERANCES * FRAMES, ("FRAMES", "CHANNELS", "WARPS")
    lengths = torch.full((CLIENTS * UTTERANCES,), FRAMES, device="cuda")
    upstream, gated = some(total, DIM, dtype=low), some(total, 2 * DIM, dtype=low)
    bias, taps = some(CLIENTS, 2 * DIM), some(CLIENTS, DIM, 1, TAPS)
    label = f"convolution gradient {str(low)[6:]}"
    return tried(
        *(label, convolution, names, sizes),
        lambda: convolution.convolve_gradient(upstream, gated, bias, taps, lengths),
    )


def of_attention(low: torch.dtype) -> list[list[str]]:
    from antiphon.models.kernels import rotary

    total, names, half = CLIENTS * UTTERANCES * FRAMES, ("FRAMES", "WARPS"), DIM // HEADS // 2
    lengths = torch.full((CLIENTS * UTTERANCES,), FRAMES, device="cuda")
    products, bias = some(total, 3 * DIM, dtype=low), some(CLIENTS, 3 * DIM)
    upstream = some(total, DIM, dtype=low)
    heads = rotary.Heads(lengths, (some(FRAMES, half), some(FRAMES, half)), HEADS)
    out = rotary.attend(products, bias, heads)
    found = tried(
        *("attention gradient", rotary, names, BLOCKS),
        lambda: rotary.attend_gradient(upstream, out, products, bias, heads),
    )
    return found + tried("attention", rotary, names, BLOCKS[1:], lambda: rotary.attend(products, bias, heads))


def main() -> None:
    arguments = parse_arguments(__doc__, "stacked_sizes")
    device = choose_device("auto")
    if device.type != "cuda":
        print("kernels need a GPU")
        return
    few = 1 if arguments.quick else None
    found = of_rows(torch.bfloat16, ROW_SIZES[:few]) + of_convolution(torch.bfloat16, TILES[:few])
    found += of_attention(torch.bfloat16)
    found += of_rows(torch.float32, ROW_SIZES[: few or 3]) + of_convolution(torch.float32, TILES[: few or 3])
    print_table(["kernel", "size", "us"], found)
    write_result(arguments, {"device": device_name(device), "found": found})


if __name__ == "__main__":
    main()
