"""Figures over rounds: error rates, losses, coverage, update norms, and what the run cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from antiphon.report.drawing import (
    FAINT,
    INK,
    MUTED,
    PALETTE,
    Look,
    as_svg,
    bytes_axis,
    draw_line,
    legend,
    look,
    new_figure,
    percent_axis,
    rounds_axis,
    thin,
)
from antiphon.report.run import Array, Entry, RunFolder, series
from antiphon.report.statistics import expected_coverage, measured_coverage


def _last_round(runs: Sequence[RunFolder]) -> int:
    return max(run.num_finished for run in runs)


@as_svg
def validation_curves(runs: Sequence[RunFolder], name: str, title: str, is_rate: bool) -> Figure:
    """A validation figure by round, one line a run; the best of each run is ringed and its value written."""
    figure, axes = new_figure()
    axes.set_title(title)
    rounds_axis(axes, _last_round(runs))
    if is_rate:
        percent_axis(axes.yaxis)
    highest = -np.inf
    for index, run in enumerate(runs):
        x, y = run.validation.get(name, (np.empty(0), np.empty(0)))
        if len(x) == 0:
            continue
        style = look(index)
        draw_line(axes, x, y, style)
        best = int(np.argmin(y))
        axes.plot(
            x[best],
            y[best],
            "o",
            markersize=6.5,
            markerfacecolor="white",
            markeredgewidth=1.8,
            color=style.colour,
        )
        highest = max(highest, float(y[0]))
        if len(runs) == 1:
            value = f"{100 * y[best]:.1f} %" if is_rate else f"{y[best]:.3g}"
            axes.set_title(
                f"lowest {value}, round {x[best]:.0f}", loc="right", fontsize=9, color=style.colour
            )
    _cap(axes, [run.validation[name][1] for run in runs if name in run.validation], highest)
    return figure


def _cap(axes: Axes, many: Sequence[Array], start: float) -> None:
    """A run that diverges must not flatten the others: the axis ends above the highest start."""
    top = max((float(y.max()) for y in many if len(y)), default=0.0)
    if np.isfinite(start) and top > 2 * start > 0:
        axes.set_ylim(top=1.3 * start)


@as_svg
def training_loss(runs: Sequence[RunFolder]) -> Figure:
    """Training loss by round; for a single run also the spread over its clients."""
    figure, axes = new_figure()
    axes.set_title("Training loss of the cohort")
    rounds_axis(axes, _last_round(runs))
    for index, run in enumerate(runs):
        if len(runs) == 1:
            _draw_spread(axes, run, "loss", look(index))
        draw_line(axes, *series(run.trained, "loss"), look(index))
    return figure


@as_svg
def update_norms(runs: Sequence[RunFolder]) -> Figure:
    """Median norm of the clients' updates by round, and the middle 80 % of clients when it stays readable."""
    figure, axes = new_figure()
    axes.set_title("Norm of client updates (median, middle 80 %)")
    rounds_axis(axes, _last_round(runs))
    for index, run in enumerate(runs):
        if len(runs) <= 3:
            _draw_spread(axes, run, "norm", look(index))
        rounds, quantiles = _client_quantiles(run, "norm")
        if len(rounds):
            draw_line(axes, rounds, quantiles[1], look(index))
    axes.set_ylim(bottom=0)
    return figure


def _draw_spread(axes: Axes, run: RunFolder, name: str, style: Look) -> None:
    rounds, quantiles = _client_quantiles(run, name)
    if len(rounds):
        at, low, _, _ = thin(rounds, quantiles[0])
        _, high, _, _ = thin(rounds, quantiles[2])
        axes.fill_between(at, low, high, color=style.colour, alpha=0.16, linewidth=0)


def _client_quantiles(run: RunFolder, name: str) -> tuple[Array, Array]:
    """(rounds [R], quantiles [3, R]): 10 %, 50 % and 90 % over the clients of a round."""
    rounds, quantiles = [], []
    for entry in run.trained:
        values = [
            client[name] for client in entry.get("clients", {}).values() if client.get(name) is not None
        ]
        if values:
            rounds.append(float(entry["round"]))
            quantiles.append(np.quantile(values, [0.1, 0.5, 0.9]))
    return np.array(rounds), np.array(quantiles).reshape(-1, 3).T


@as_svg
def coverage(runs: Sequence[RunFolder]) -> Figure:
    """Share of the pool drawn at least once: measured (line) and expected (dotted)."""
    figure, axes = new_figure()
    axes.set_title("Share of the pool drawn at least once")
    percent_axis(axes.yaxis)
    axes.set_ylim(0, 1.03)
    last = 1
    for index, run in enumerate(runs):
        if not run.num_clients:
            continue
        drawn = measured_coverage((entry.get("cohort", ()) for entry in run.trained), run.num_clients)
        measured = np.array([0.0, *drawn])
        rounds = np.array([0.0, *(entry["round"] for entry in run.trained)])
        # Once all have been seen the rest is a flat line: the rounds until then are the figure.
        last = max(last, min(run.num_finished, 10 + int(1.5 * np.count_nonzero(measured < 0.999))))
        shown = rounds <= last
        draw_line(axes, rounds[shown], measured[shown], look(index))
        every = np.linspace(0, last, 160)
        expected = expected_coverage(run.cohort_size, run.num_clients, every)
        colour = look(index).colour if len(runs) > 1 else INK
        axes.plot(every, expected, color=colour, linestyle=":", linewidth=1.4)
    rounds_axis(axes, last)
    colours = (PALETTE[0], INK) if len(runs) == 1 else (MUTED, MUTED)
    keys = [Line2D([], [], color=colours[0]), Line2D([], [], color=colours[1], linestyle=":")]
    legend(axes, keys, ["measured", "expected"])
    return figure


@as_svg
def bytes_by_round(runs: Sequence[RunFolder]) -> Figure:
    """Bytes that would travel in each round, to all clients and back."""
    figure, axes = new_figure()
    axes.set_title("Traffic per round")
    _pair(axes, runs, lambda run: run.trained, ("bytes_down", "bytes_up"), ("to clients", "from clients"))
    bytes_axis(axes.yaxis, axes.get_ylim()[1])
    return figure


@as_svg
def error_by_bytes(runs: Sequence[RunFolder]) -> Figure:
    """Validation WER over the bytes sent until then."""
    figure, axes = new_figure()
    axes.set_title("Validation WER by traffic so far")
    percent_axis(axes.yaxis)
    curves = []
    for index, run in enumerate(runs):
        rounds, values = run.validation.get("wer", (np.empty(0), np.empty(0)))
        sent = np.cumsum([entry.get("bytes_down", 0) + entry.get("bytes_up", 0) for entry in run.trained])
        finished = np.array([entry["round"] for entry in run.trained])
        before = np.searchsorted(finished, rounds, side="right")  # rounds finished when it was measured
        draw_line(axes, np.array([0.0, *sent])[before], values, look(index))
        curves.append(values)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    bytes_axis(axes.xaxis, axes.get_xlim()[1])
    axes.set_xlabel("bytes, to clients and back")
    _cap(axes, curves, max((float(values[0]) for values in curves if len(values)), default=0.0))
    return figure


@as_svg
def memory_by_round(runs: Sequence[RunFolder]) -> Figure:
    """Peak memory after each round."""
    figure, axes = new_figure()
    axes.set_title("Memory")
    _pair(axes, runs, lambda run: run.clock, ("rss_mib", "gpu_mib"), ("process", "GPU"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f} MiB"))
    return figure


def _pair(
    axes: Axes,
    runs: Sequence[RunFolder],
    entries: Callable[[RunFolder], Sequence[Entry]],
    keys: tuple[str, str],
    names: tuple[str, str],
) -> None:
    """Two quantities of one kind: the first solid, the second dashed; one that stays zero is left out."""
    rounds_axis(axes, _last_round(runs))
    shown: dict[str, Any] = {}
    for key, name, dash in zip(keys, names, ("-", (0, (3, 1.5))), strict=True):
        for index, run in enumerate(runs):
            x, y = series(entries(run), key)
            if y.any():
                draw_line(axes, x, y, Look(look(index).colour, dash))
                shown[name] = dash
    colour = PALETTE[0] if len(runs) == 1 else MUTED
    legend(axes, [Line2D([], [], color=colour, linestyle=d) for d in shown.values()], list(shown))
    axes.set_ylim(bottom=0)


@as_svg
def seconds_by_round(runs: Sequence[RunFolder]) -> Figure:
    """Wall time of each round; for a single run, what it was spent on."""
    figure, axes = new_figure()
    axes.set_title("Seconds per round")
    rounds_axis(axes, _last_round(runs))
    if len(runs) == 1:
        _stack_seconds(axes, runs[0])
    else:
        for index, run in enumerate(runs):
            draw_line(axes, *series(run.clock, "seconds"), look(index))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g} s"))
    return figure


def _stack_seconds(axes: Axes, run: RunFolder) -> None:
    rows = [
        (
            entry["round"],
            entry.get("train_seconds") or 0,
            entry.get("task_evaluate_seconds") or 0,
            entry.get("valid_seconds") or 0,
            entry.get("seconds") or 0,
        )
        for entry in run.clock
    ]
    if not rows:
        return
    rounds, train, candidates, valid, total = np.array(rows, dtype=float).T
    parts = {"training": train - candidates, "validation": valid}
    if candidates.any():  # models that a round measured before it chose one
        parts = {"training": train - candidates, "candidates": candidates, "validation": valid}
    parts["other"] = np.maximum(0, total - train - valid)
    colours = (PALETTE[0], *((PALETTE[1],) if candidates.any() else ()), PALETTE[5], FAINT)
    at = thin(rounds, rounds)[0]
    step = np.concatenate([[at[0] - 1 if len(at) < 2 else 2 * at[0] - at[1]], at])
    layers = [thin(rounds, values)[1] for values in parts.values()]
    # A round lasts from the end of the one before: steps, not slopes.
    drawn = axes.stackplot(
        step,
        [np.concatenate([layer[:1], layer]) for layer in layers],
        colors=colours,
        step="pre",
        linewidth=0,
    )
    legend(axes, drawn, list(parts))
