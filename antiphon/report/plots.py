"""Figures over rounds: error rates, losses, coverage, update norms, and costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from antiphon.report.drawing import (
    FAINT,
    INK,
    MUTED,
    PALETTE,
    Look,
    bytes_axis,
    draw_line,
    legend,
    look,
    percent_axis,
    plot,
    rounds_axis,
    thin,
)
from antiphon.report.run_folder import Array, Entry, RunFolder, series
from antiphon.report.simulated_time import at_rounds, energy_curve, time_curve, total_bytes
from antiphon.scoring.statistics import effective_number, expected_coverage, measured_coverage

Series = tuple[Array, Array]  # x, y
NOTHING: Series = (np.empty(0), np.empty(0))


def _by_round(axes: Axes, runs: Sequence[RunFolder]) -> None:
    rounds_axis(axes, max(run.num_finished for run in runs))


def _lines(
    axes: Axes, runs: Sequence[RunFolder], values: Callable[[RunFolder], Series], spread: str = ""
) -> None:
    """Draw a line for each run; `spread` names a number of clients whose middle 80 % become a band."""
    _by_round(axes, runs)
    for run in runs:
        if spread:
            _draw_spread(axes, run, spread, look(run.position))
        draw_line(axes, *values(run), look(run.position))


@plot()
def validation_curves(axes: Axes, runs: Sequence[RunFolder], name: str, title: str, is_rate: bool) -> None:
    """Draw a validation figure by round, one line per run, with a ring at the lowest value of each."""
    axes.set_title(title)
    _by_round(axes, runs)
    if is_rate:
        percent_axis(axes.yaxis)
    curves = [run.validation.get(name, NOTHING) for run in runs]
    for run, (x, y) in zip(runs, curves, strict=True):
        if len(x) == 0:
            continue
        style, best = look(run.position), int(np.argmin(y))
        draw_line(axes, x, y, style)
        ring: dict[str, Any] = {"markersize": 6.5, "markerfacecolor": "white", "markeredgewidth": 1.8}
        axes.plot(x[best], y[best], "o", color=style.colour, **ring)
        if len(runs) == 1:
            value = f"{100 * y[best]:.1f} %" if is_rate else f"{y[best]:.3g}"
            text = f"lowest {value}, round {x[best]:.0f}"
            axes.set_title(text, loc="right", fontsize=9, color=style.colour)
    _cap(axes, runs, [y for _, y in curves])


def _cap(axes: Axes, runs: Sequence[RunFolder], curves: Sequence[Array]) -> None:
    """Let the axis end above the highest start, so that a run that diverges does not flatten the others.

    Random weights are no start, unless all runs began with them.
    """
    drawn = [(run, y) for run, y in zip(runs, curves, strict=True) if len(y)]
    starts = [float(y[0]) for run, y in drawn if run.started_from] or [float(y[0]) for _, y in drawn]
    start = max(starts, default=0.0)
    if max((float(y.max()) for _, y in drawn), default=0.0) > 2 * start > 0:
        axes.set_ylim(top=1.3 * start)


@plot("Training loss of the cohort")
def training_loss(axes: Axes, runs: Sequence[RunFolder]) -> None:
    """Draw the training loss by round; for a single run also the spread over its clients."""
    _lines(axes, runs, lambda run: series(run.trained, "loss"), spread="loss" if len(runs) == 1 else "")


@plot("Norm of client updates (median, middle 80 %)")
def update_norms(axes: Axes, runs: Sequence[RunFolder]) -> None:
    """Draw the median norm of the clients' updates by round; for up to three runs also the middle 80 %."""
    spread = "norm" if len(runs) <= 3 else ""
    _lines(axes, runs, lambda run: _client_quantile(run, "norm", 0.5), spread)
    axes.set_ylim(bottom=0)


def _draw_spread(axes: Axes, run: RunFolder, name: str, style: Look) -> None:
    rounds, low, _, _ = thin(*_client_quantile(run, name, 0.1))
    _, high, _, _ = thin(*_client_quantile(run, name, 0.9))
    if len(rounds):
        axes.fill_between(rounds, low, high, color=style.colour, alpha=0.16, linewidth=0)


def _client_quantile(run: RunFolder, name: str, share: float) -> Series:
    """Return a quantile over the clients of a round, by round."""

    def quantile(clients: Sequence[Entry]) -> float | None:
        values = [client[name] for client in clients if client.get(name) is not None]
        return float(np.quantile(values, share)) if values else None

    return _of_clients(run, quantile)


def _of_clients(run: RunFolder, figure: Callable[[Sequence[Entry]], float | None]) -> Series:
    """Return a figure of the clients of each round, leaving out rounds without one."""
    values = ((entry["round"], figure(list(entry.get("clients", {}).values()))) for entry in run.trained)
    return series([{"round": number, "value": value} for number, value in values], "value")


@plot("Effective share of the cohort, 1 / (n Σα²)")
def effective_clients(axes: Axes, runs: Sequence[RunFolder]) -> None:
    """Draw the effective number of clients over the number that answered: 100 % is equal weights."""

    def share(clients: Sequence[Entry]) -> float | None:
        weights = [client.get("weight") or 0.0 for client in clients]
        return effective_number(weights) / len(weights) if any(weights) else None

    _lines(axes, runs, lambda run: _of_clients(run, share))
    percent_axis(axes.yaxis)
    axes.set_ylim(0, 1.03)


@plot("Share of the pool drawn at least once")
def coverage(axes: Axes, runs: Sequence[RunFolder]) -> None:
    """Draw the share of the pool drawn at least once: measured (line) and expected (dotted)."""
    percent_axis(axes.yaxis)
    axes.set_ylim(0, 1.03)
    last = 1
    for run in runs:
        drawn = measured_coverage((entry.get("cohort", ()) for entry in run.trained), run.num_clients)
        measured = np.array([0.0, *drawn])
        rounds = np.array([0.0, *(entry["round"] for entry in run.trained)])
        # When all clients have been drawn the line is flat: the figure ends soon after.
        last = max(last, min(run.num_finished, 10 + int(1.5 * np.count_nonzero(measured < 0.999))))
        shown = rounds <= last
        draw_line(axes, rounds[shown], measured[shown], look(run.position))
        x = np.linspace(0, last, 160)
        expected = expected_coverage(run.cohort_size, run.num_clients, x)
        colour = look(run.position).colour if len(runs) > 1 else INK
        axes.plot(x, expected, color=colour, linestyle=":", linewidth=1.4)
    rounds_axis(axes, last)
    colours = (look(runs[0].position).colour, INK) if len(runs) == 1 else (MUTED, MUTED)
    keys = [Line2D([], [], color=colours[0]), Line2D([], [], color=colours[1], linestyle=":")]
    legend(axes, keys, ["measured", "expected"])


@plot("Validation WER by traffic so far")
def error_by_bytes(axes: Axes, runs: Sequence[RunFolder]) -> None:
    """Draw validation WER over the bytes sent until then."""
    percent_axis(axes.yaxis)
    curves = [run.validation.get("wer", NOTHING) for run in runs]
    for run, (rounds, values) in zip(runs, curves, strict=True):
        draw_line(axes, at_rounds(run, rounds, total_bytes(run)), values, look(run.position))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    bytes_axis(axes.xaxis, axes.get_xlim()[1])
    axes.set_xlabel("bytes, to clients and back")
    _cap(axes, runs, [values for _, values in curves])


@plot("Validation WER by simulated time")
def error_by_time(axes: Axes, runs: Sequence[RunFolder]) -> None:
    """Draw validation WER over the simulated time until then, of the runs that have a clock."""
    _error_by_cost(axes, runs, time_curve, "hours of simulated time")


@plot("Validation WER by energy")
def error_by_energy(axes: Axes, runs: Sequence[RunFolder]) -> None:
    """Draw validation WER over the energy of all devices until then, of the runs that have a clock."""
    _error_by_cost(axes, runs, energy_curve, "kilojoules of simulated devices")


def _error_by_cost(
    axes: Axes, runs: Sequence[RunFolder], curve_of: Callable[[RunFolder], Series], label: str
) -> None:
    percent_axis(axes.yaxis)
    curves = [curve_of(run) for run in runs]
    for run, curve in zip(runs, curves, strict=True):
        draw_line(axes, *curve, look(run.position))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel(label)
    _cap(axes, runs, [values for _, values in curves])


@plot("Traffic per round")
def bytes_by_round(axes: Axes, runs: Sequence[RunFolder]) -> None:
    """Draw the bytes that would travel in each round, to all clients and back."""
    _pair(axes, runs, lambda run: run.trained, {"bytes_down": "to clients", "bytes_up": "from clients"})
    bytes_axis(axes.yaxis, axes.get_ylim()[1])


@plot("Memory")
def memory_by_round(axes: Axes, runs: Sequence[RunFolder]) -> None:
    """Draw the peak memory after each round."""
    _pair(axes, runs, lambda run: run.clock, {"rss_mib": "process", "gpu_mib": "GPU"})
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f} MiB"))


Entries = Callable[[RunFolder], Sequence[Entry]]


def _pair(axes: Axes, runs: Sequence[RunFolder], entries: Entries, names: Mapping[str, str]) -> None:
    """Draw two quantities of one kind, the first solid, the second dashed, unless all values are zero."""
    _by_round(axes, runs)
    shown: dict[str, Any] = {}
    for (key, name), dash in zip(names.items(), ("-", (0, (3, 1.5))), strict=True):
        for run in runs:
            x, y = series(entries(run), key)
            if y.any():
                draw_line(axes, x, y, Look(look(run.position).colour, dash))
                shown[name] = dash
    colour = look(runs[0].position).colour if len(runs) == 1 else MUTED
    legend(axes, [Line2D([], [], color=colour, linestyle=d) for d in shown.values()], list(shown))
    axes.set_ylim(bottom=0)


@plot("Seconds per round")
def seconds_by_round(axes: Axes, runs: Sequence[RunFolder]) -> None:
    """Draw the wall time of each round; for a single run, by activity."""
    _by_round(axes, runs)
    if len(runs) == 1:
        _stack_seconds(axes, runs[0])
    else:
        _lines(axes, runs, lambda run: series(run.clock, "seconds"))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g} s"))


def _stack_seconds(axes: Axes, run: RunFolder) -> None:
    if not run.clock:
        return
    keys = ("round", "train_seconds", "task_evaluate_seconds", "valid_seconds", "seconds")
    table = np.array([[entry.get(key) or 0 for key in keys] for entry in run.clock], dtype=float)
    rounds, train, candidates, valid, total = table.T
    layers = {
        "training": (train - candidates, PALETTE[0]),
        "candidates": (candidates, PALETTE[1]),  # models that a round measured before it chose one
        "validation": (valid, PALETTE[5]),
        "other": (np.maximum(0, total - train - valid), FAINT),
    }
    if not candidates.any():
        del layers["candidates"]
    x = thin(rounds, rounds)[0]
    # A round begins at the end of the one before: draw steps, not slopes.
    edges = np.concatenate([[x[0] - 1 if len(x) < 2 else 2 * x[0] - x[1]], x])
    heights = [thin(rounds, seconds)[1] for seconds, _ in layers.values()]
    steps = [np.concatenate([height[:1], height]) for height in heights]
    colours = [colour for _, colour in layers.values()]
    legend(axes, axes.stackplot(edges, steps, colors=colours, step="pre", linewidth=0), list(layers))
