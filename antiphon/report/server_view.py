"""What the server of a run could see of its clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.report.run_folder import RunFolder

ADDED = {"weight", "tasks"}  # of the journal's statistics: the server's own


def _noise(config: Mapping[str, Any]) -> str:
    private = config.get("algorithm", {}).get("private", {})
    return ", with the noise that clients added" if "distributed" in private.get("noise", {}) else ""


def server_view(run: RunFolder) -> list[str]:
    """Return one sentence for each thing that the server saw, or did not see."""
    config = run.about["config"]
    if "central" in config.get("algorithm", {}):
        return ["All speech and transcripts: the model was trained in one place."]
    stats = {name for entry in run.trained for client in entry.get("clients", {}).values() for name in client}
    reports = ", ".join(sorted(stats - ADDED)) or "none yet"
    before = "Before the run, of every client: its name, its number of utterances and its seconds of speech."
    seen = [
        *([before] if (run.path / "federation.json").exists() else []),
        "Which clients were asked in each round, which answered, and why others did not.",
        f"The report of every client that answered: {reports}.",
    ]
    if config.get("secure_aggregation"):
        return [
            *seen,
            "The weight of every client, which follows from its report.",
            f"The weighted mean of the updates of each cohort{_noise(config)}, and no single update (secure "
            "aggregation).",
        ]
    return [*seen, "Every single update: the change of each parameter that a client trained."]
