"""GPU kernels (Triton) of one step of many LSTMs, products and cell at once (`models.lstm_steps`).

A step is bound by memory: each weight is read once and serves a handful of rows. A program has all rows of
one LSTM and a tile of its units, in all four gates, so that the cell follows the products without leaving
the program. Products are summed in float32: of weights in float32 by three products of TF32 parts, which
lose about two bits; of weights in 16 bits, which TF32 holds exactly, by one.

Kernel arguments have no annotations: Triton would read them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

UNITS = 32  # of a program
BLOCK = 64  # the part of a sum that is loaded at once
ROWS = 16  # of a program: tensor cores take no fewer, and registers have no room for more
NUM_WARPS, NUM_STAGES = 4, 3


@triton.jit
def _tanh(values):  # type: ignore[no-untyped-def]
    return 2 * tl.sigmoid(2 * values) - 1


@triton.jit
def _add_gates(  # type: ignore[no-untyped-def]
    first,
    forget,
    cell,
    output,
    rows,
    weights,
    between_units,
    size,
    num_units,
    has_row,
    has_unit,
    precision: tl.constexpr,
    block: tl.constexpr,
):
    # Pointers to the beginning of each row [rows, 1], and of each unit's weights of the first gate [1, units]
    column = tl.arange(0, block)
    to_next_gate = num_units * between_units
    for begin in range(0, size, block):
        inside = begin + column < size
        values = tl.load(rows + (begin + column)[None, :], mask=has_row[:, None] & inside[None, :], other=0.0)
        values = values.to(tl.float32)
        place = weights + (begin + column)[:, None]
        real = inside[:, None] & has_unit[None, :]
        first_weights = tl.load(place, mask=real, other=0.0).to(tl.float32)
        forget_weights = tl.load(place + to_next_gate, mask=real, other=0.0).to(tl.float32)
        cell_weights = tl.load(place + 2 * to_next_gate, mask=real, other=0.0).to(tl.float32)
        output_weights = tl.load(place + 3 * to_next_gate, mask=real, other=0.0).to(tl.float32)
        first = tl.dot(values, first_weights, first, input_precision=precision)
        forget = tl.dot(values, forget_weights, forget, input_precision=precision)
        cell = tl.dot(values, cell_weights, cell, input_precision=precision)
        output = tl.dot(values, output_weights, output, input_precision=precision)
    return first, forget, cell, output


@triton.jit(do_not_specialize=["num_rows"])
def _advance(  # type: ignore[no-untyped-def]
    gates,
    between_gates,
    rows_1,
    between_rows_1,
    weights_1,
    between_lstms_1,
    between_units_1,
    size_1,
    rows_2,
    between_rows_2,
    weights_2,
    between_lstms_2,
    between_units_2,
    size_2,
    before,
    between_before,
    hidden,
    between_hidden,
    carry,
    between_carry,
    activated,
    between_activated,
    num_rows,
    num_units,
    num_sources: tl.constexpr,
    precision: tl.constexpr,
    rows: tl.constexpr,
    units: tl.constexpr,
    block: tl.constexpr,
):
    lstm = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * units + tl.arange(0, units)
    row = tl.program_id(2) * rows + tl.arange(0, rows)
    has_row, has_unit = row < num_rows, unit < num_units
    real = has_row[:, None] & has_unit[None, :]
    row = (lstm * num_rows + row)[:, None]
    first = tl.zeros((rows, units), dtype=tl.float32)
    forget = tl.zeros((rows, units), dtype=tl.float32)
    cell = tl.zeros((rows, units), dtype=tl.float32)
    output = tl.zeros((rows, units), dtype=tl.float32)
    if num_sources > 0:
        place = weights_1 + lstm * between_lstms_1 + unit.to(tl.int64)[None, :] * between_units_1
        first, forget, cell, output = _add_gates(
            *(first, forget, cell, output, rows_1 + row * between_rows_1, place),
            *(between_units_1, size_1, num_units, has_row, has_unit, precision, block),
        )
    if num_sources > 1:
        place = weights_2 + lstm * between_lstms_2 + unit.to(tl.int64)[None, :] * between_units_2
        first, forget, cell, output = _add_gates(
            *(first, forget, cell, output, rows_2 + row * between_rows_2, place),
            *(between_units_2, size_2, num_units, has_row, has_unit, precision, block),
        )
    place = gates + row * between_gates + unit[None, :]
    first = tl.sigmoid(first + tl.load(place, mask=real, other=0.0))
    forget = tl.sigmoid(forget + tl.load(place + num_units, mask=real, other=0.0))
    cell = _tanh(cell + tl.load(place + 2 * num_units, mask=real, other=0.0))
    output = tl.sigmoid(output + tl.load(place + 3 * num_units, mask=real, other=0.0))
    after = first * cell
    after += forget * tl.load(before + row * between_before + unit[None, :], mask=real, other=0.0)
    tl.store(carry + row * between_carry + unit[None, :], after, mask=real)
    tl.store(hidden + row * between_hidden + unit[None, :], output * _tanh(after), mask=real)
    place = activated + row * between_activated + unit[None, :]
    tl.store(place, first, mask=real)
    tl.store(place + num_units, forget, mask=real)
    tl.store(place + 2 * num_units, cell, mask=real)
    tl.store(place + 3 * num_units, output, mask=real)


@triton.jit
def _add_rows(  # type: ignore[no-untyped-def]
    total,
    rows,
    weights,
    between_weights,
    size,
    has_row,
    has_unit,
    precision: tl.constexpr,
    block: tl.constexpr,
):
    # Pointers to the beginning of each row [rows, 1], and to the first weights of the units [1, units].
    column = tl.arange(0, block)
    for begin in range(0, size, block):
        inside = begin + column < size
        values = tl.load(rows + (begin + column)[None, :], mask=has_row[:, None] & inside[None, :], other=0.0)
        place = weights + (begin + column).to(tl.int64)[:, None] * between_weights
        factors = tl.load(place, mask=inside[:, None] & has_unit[None, :], other=0.0)
        total = tl.dot(values.to(tl.float32), factors.to(tl.float32), total, input_precision=precision)
    return total


@triton.jit(do_not_specialize=["num_rows"])
def _retreat(  # type: ignore[no-untyped-def]
    added,
    between_added,
    rows_1,
    between_rows_1,
    weights_1,
    between_lstms_1,
    between_weights_1,
    size_1,
    rows_2,
    between_rows_2,
    weights_2,
    between_lstms_2,
    between_weights_2,
    size_2,
    d_carry,
    between_d_carry,
    before,
    between_before,
    after,
    between_after,
    activated,
    between_activated,
    out,
    between_out,
    num_rows,
    num_units,
    num_sources: tl.constexpr,
    has_cell: tl.constexpr,
    precision: tl.constexpr,
    rows: tl.constexpr,
    units: tl.constexpr,
    block: tl.constexpr,
):
    # With a cell, `out` is the gradient of its gates; without, the sum itself.
    lstm = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * units + tl.arange(0, units)
    row = tl.program_id(2) * rows + tl.arange(0, rows)
    has_row, has_unit = row < num_rows, unit < num_units
    real = has_row[:, None] & has_unit[None, :]
    row = (lstm * num_rows + row)[:, None]
    total = tl.zeros((rows, units), dtype=tl.float32)
    if num_sources > 0:
        total = _add_rows(
            *(total, rows_1 + row * between_rows_1, weights_1 + lstm * between_lstms_1 + unit[None, :]),
            *(between_weights_1, size_1, has_row, has_unit, precision, block),
        )
    if num_sources > 1:
        total = _add_rows(
            *(total, rows_2 + row * between_rows_2, weights_2 + lstm * between_lstms_2 + unit[None, :]),
            *(between_weights_2, size_2, has_row, has_unit, precision, block),
        )
    total += tl.load(added + row * between_added + unit[None, :], mask=real, other=0.0)
    place = out + row * between_out + unit[None, :]
    if has_cell:
        values = activated + row * between_activated + unit[None, :]
        first = tl.load(values, mask=real, other=0.0)
        forget = tl.load(values + num_units, mask=real, other=0.0)
        cell = tl.load(values + 2 * num_units, mask=real, other=0.0)
        output = tl.load(values + 3 * num_units, mask=real, other=0.0)
        squashed = _tanh(tl.load(after + row * between_after + unit[None, :], mask=real, other=0.0))
        last = tl.load(before + row * between_before + unit[None, :], mask=real, other=0.0)
        carried = d_carry + row * between_d_carry + unit[None, :]
        d_after = tl.load(carried, mask=real, other=0.0) + total * output * (1 - squashed * squashed)
        tl.store(carried, d_after * forget, mask=real)
        tl.store(place, d_after * cell * first * (1 - first), mask=real)
        tl.store(place + num_units, d_after * last * forget * (1 - forget), mask=real)
        tl.store(place + 2 * num_units, d_after * first * (1 - cell * cell), mask=real)
        tl.store(place + 3 * num_units, total * squashed * output * (1 - output), mask=real)
    else:
        tl.store(place, total, mask=real)


def advance(
    gates: Tensor,
    sources: Sequence[tuple[Tensor, Tensor]],
    before: Tensor,
    out: tuple[Tensor, Tensor, Tensor],
) -> None:
    """See `lstm_steps.advance`."""
    num_lstms, num_units = len(sources[0][1]), before.shape[1]
    num_rows, precision = len(gates) // num_lstms, _precision(sources)
    grid = (num_lstms, triton.cdiv(num_units, UNITS), triton.cdiv(num_rows, ROWS))
    _advance[grid](
        *_strided(gates),
        *_arguments(sources),
        *(argument for tensor in (before, *out) for argument in _strided(tensor)),
        *(num_rows, num_units, len(sources), precision, ROWS, UNITS, BLOCK),
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
    )


def retreat(
    d_hidden: Tensor,
    sources: Sequence[tuple[Tensor, Tensor]],
    d_carry: Tensor,
    step: tuple[Tensor, Tensor, Tensor],
    d_gates: Tensor,
) -> None:
    """See `lstm_steps.retreat`."""
    _launch_retreat(d_hidden, sources, (d_carry, *step), d_gates)


def add_product(added: Tensor, sources: Sequence[tuple[Tensor, Tensor]], out: Tensor) -> None:
    """See `lstm_steps.add_product`."""
    _launch_retreat(added, sources, (), out)


def _launch_retreat(
    added: Tensor, sources: Sequence[tuple[Tensor, Tensor]], step: tuple[Tensor, ...], out: Tensor
) -> None:
    num_lstms, num_units = len(sources[0][1]) if sources else 1, added.shape[1]
    num_rows, precision = len(added) // num_lstms, _precision(sources)
    grid = (num_lstms, triton.cdiv(num_units, UNITS), triton.cdiv(num_rows, ROWS))
    _retreat[grid](
        *_strided(added),
        *_arguments(sources or [(added, added[None])]),
        *(argument for tensor in (step or (added,) * 4) for argument in _strided(tensor)),
        *_strided(out),
        *(num_rows, num_units, len(sources), len(step) > 0, precision, ROWS, UNITS, BLOCK),
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
    )


def _strided(rows: Tensor) -> tuple[Tensor, int]:
    """A tensor of rows, and how far apart they are."""
    if rows.shape[1] > 1 and rows.stride(1) != 1:
        raise ValueError(f"the values of a row must lie side by side, not {rows.stride(1)} apart")
    return rows, rows.stride(0)


def _arguments(sources: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor | int, ...]:
    """The arguments of two sources; a missing one is the first again, unread."""
    both = (*sources, sources[0])[:2]
    arguments: list[Tensor | int] = []
    for rows, weights in both:
        arguments += [*_strided(rows), weights, weights.stride(0), _strided(weights[0])[1], rows.shape[1]]
    return tuple(arguments)


def _precision(sources: Sequence[tuple[Tensor, Tensor]]) -> str:
    """Three products of parts, unless TF32 holds the weights; rows are rounded to its ten bits then."""
    return "tf32x3" if any(weights.dtype == torch.float32 for _, weights in sources) else "tf32"
