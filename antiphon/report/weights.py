"""How much clients counted, over an equal share of the round: each of them; clean and corrupted ones."""

from __future__ import annotations

import numpy as np

from antiphon.report.run_folder import Array, RunFolder


def relative_weights(run: RunFolder) -> tuple[list[str], Array]:
    """(clients, weights [clients, rounds]): 1 is an equal share of the round, NaN not in it."""
    clients = sorted({name for entry in run.trained for name in entry.get("clients", {})})
    index = {name: row for row, name in enumerate(clients)}
    weights = np.full((len(clients), len(run.trained)), np.nan, dtype=np.float32)
    for column, entry in enumerate(run.trained):
        answered = entry.get("clients", {})
        for name, stats in answered.items():
            if stats.get("weight") is not None:
                weights[index[name], column] = stats["weight"] * len(answered)
    return clients, weights.astype(np.float64)


def weights_by_kind(run: RunFolder) -> dict[str, tuple[Array, Array]]:
    """Of clean and of corrupted clients: (rounds in which some answered, mean weight over an equal share).

    Empty for a run without corrupted clients, or with no others.
    """
    clients, weights = relative_weights(run)
    rounds = np.array([float(entry["round"]) for entry in run.trained])
    bad = np.array([name in run.corrupted for name in clients], dtype=bool)
    kinds = {}
    for kind, rows in (("clean", ~bad), ("corrupted", bad)):
        there = np.isfinite(weights[rows]).any(axis=0)
        if not there.any():
            return {}
        kinds[kind] = (rounds[there], np.nanmean(weights[rows][:, there], axis=0))
    return kinds
