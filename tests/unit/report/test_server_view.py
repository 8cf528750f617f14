from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.report.run_folder import RunFolder
from antiphon.report.server_view import server_view

JOURNAL = [
    {"round": 1, "clients": {"a": {"loss": 1.0, "weight": 0.5}, "b": {"state_bytes": 3, "weight": 0.5}}}
]


def run_of(config: dict[str, Any]) -> RunFolder:
    return RunFolder(Path("run"), "run", {"config": config}, JOURNAL, [], {})


def test_a_plain_run_shows_the_server_every_update_and_the_reports_of_the_journal() -> None:
    *_, reports, updates = server_view(run_of({"algorithm": {"fed_avg": {}}}))
    assert reports == "The report of every client that answered: loss, state_bytes."
    assert updates.startswith("Every single update")


def test_a_federation_shows_the_server_what_sites_announce(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, "run", {"config": {"algorithm": {"fed_avg": {}}}}, JOURNAL, [], {})
    assert not any("Before the run" in line for line in server_view(run))
    (tmp_path / "federation.json").write_text("{}")
    assert "of every client: its name, its number of utterances" in server_view(run)[0]


def test_secure_aggregation_shows_means_and_no_single_update() -> None:
    lines = server_view(run_of({"algorithm": {"fed_avg": {}}, "secure_aggregation": {"bound": 1.0}}))
    assert not any("Every single update" in line for line in lines)
    assert "no single update" in lines[-1]
    assert any("weight of every client" in line for line in lines)


@pytest.mark.parametrize("algorithm", [{"central": {}}])
def test_central_training_shows_everything(algorithm: dict[str, Any]) -> None:
    assert "All speech" in server_view(run_of({"algorithm": algorithm}))[0]
