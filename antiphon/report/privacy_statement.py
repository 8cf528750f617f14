"""What a run guarantees by differential privacy, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from antiphon.report.run_folder import RunFolder

NOT_COVERED = (
    "Not covered: the journal of the run (losses, numbers of utterances, who took part), the server itself, "
    "the model that the run started from, and floating-point rounding of the noise."
)
SHARES = (
    "The noise was discrete. Clients added it in shares before their updates were summed under masks: for "
    "updates, the guarantee holds against the server, too. Neighbouring data differ by the speech of one "
    "client; that it took part is not hidden. Not covered: what clients report to the server beside their "
    "updates (losses, numbers of utterances: the journal), and the model that the run started from."
)


def privacy_statement(run: RunFolder) -> str:
    """Return the guarantee of a run with private updates; "" for other runs."""
    settings: Mapping[str, Any] | None = run.about["config"].get("algorithm", {}).get("private")
    spent = [entry["metrics"]["epsilon"] for entry in run.trained if "epsilon" in entry.get("metrics", {})]
    if settings is None or not spent:
        return ""
    (cohorts, drawn), (clipping, how) = _choice(settings["cohorts"]), _choice(settings["clipping"])
    means = ", ".join(f"{name} {value:g}" for name, value in drawn.items())
    lines = [
        f"Differential privacy: (ε = {_rounded_up(spent[-1])}, δ = {settings['delta']:g}) for every client, "
        f"after {len(spent)} rounds, for anyone who sees the models of all rounds. Neighbouring data differ "
        "by one client with all its speech.",
        f"Updates were clipped to an l2 norm of {how['bound']:g} ({clipping}) and got Gaussian noise; "
        f"cohorts were drawn by {cohorts} ({means}).",
    ]
    shares = settings.get("noise", {}).get("distributed")
    lines += [NOT_COVERED] if shares is None else [SHARES, _colluding(shares["colluding"])]
    if settings["trusts_clients"]:
        lines.append("Clients clipped their own updates; the server could not check it.")
    if settings["simulated"]:
        lines.append(
            "The noise came from the seed of the run: this was a simulation, and whoever knows the seed can "
            "subtract the noise."
        )
    return " ".join(lines)


def _colluding(number: int) -> str:
    return f"It assumes that of all clients of a round, {number} at most tell others the noise they added."


def _choice(tree: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the settings of a choice."""
    return next(iter(tree.items()))


def _rounded_up(epsilon: float) -> str:
    """Return ε with three digits, never smaller than it is.

    >>> _rounded_up(2.5831), _rounded_up(7.9999999)
    ('2.59', '8')
    """
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return f"{math.ceil(epsilon / step - 1e-9) * step:.3g}"
