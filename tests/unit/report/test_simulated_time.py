"""Simulated time in reports: until an error rate was reached, in hours and bytes; nothing without a clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.report import write_report
from antiphon.report.run_folder import RunFolder
from antiphon.report.simulated_time import TimeRow, energy_curve, time_curve, time_rows


def run(
    label: str,
    wers: list[float],
    seconds: float | None,
    failures: list[str] = [],
    joules: float | None = None,
) -> RunFolder:
    """A run with a validation before the first round and after each one; 30 bytes travel in a round."""
    journal: list[dict[str, Any]] = [{"round": 0, "valid": {"wer": wers[0]}}]
    for number, wer in enumerate(wers[1:], 1):
        entry = {"round": number, "valid": {"wer": wer}, "bytes_down": 20, "bytes_up": 10}
        if seconds is not None:
            entry |= {"simulated_seconds": seconds, "simulated_time": number * seconds}
        if joules is not None:
            entry["simulated_joules"] = joules
        journal.append({**entry, "failures": {str(i): reason for i, reason in enumerate(failures)}})
    about = {"name": label, "started_from": "seed", "rounds": len(wers) - 1, "num_clients": 9}
    return RunFolder(Path(label), label, about, journal, [], {})


SLOW = run("slow", [0.5, 0.4, 0.3, 0.2], 3600.0)
FAST = run("fast", [0.5, 0.3, 0.25], 600.0, ["late: 9.0 s, deadline 8 s", "away"], 1500.0)
PLAIN = run("plain", [0.5, 0.1], None)


def test_time_and_bytes_are_counted_until_an_error_rate_that_all_runs_reached() -> None:
    """That is 25 %: the slow run reaches it in its third round, the fast one in its second."""
    assert time_rows([SLOW, FAST]) == [
        TimeRow("slow", 3, 10800.0, 3600.0, 0, 10800.0, 10800.0, 90.0, None),  # it has no energy
        TimeRow("fast", 2, 1200.0, 600.0, 2, 1200.0, 1200.0, 60.0, 3000.0),
    ]


def test_runs_without_a_clock_have_no_time() -> None:
    assert [row.label for row in time_rows([PLAIN, FAST])] == ["fast"]
    assert time_rows([PLAIN]) == []


def test_a_curve_begins_at_time_zero() -> None:
    hours, wers = time_curve(SLOW)
    assert hours.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert wers.tolist() == [0.5, 0.4, 0.3, 0.2]


def test_energy_is_added_up_from_round_to_round() -> None:
    kilojoules, wers = energy_curve(FAST)
    assert kilojoules.tolist() == [0.0, 1.5, 3.0]
    assert wers.tolist() == [0.5, 0.3, 0.25]


@pytest.mark.parametrize("has_clock", [True, False])
def test_reports_show_simulated_time_if_there_is_a_clock(
    make_run: Any, tmp_path: Path, has_clock: bool
) -> None:
    folder = make_run(tmp_path / "run", rounds=3)
    if has_clock:
        lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
        timed = [
            line
            | (
                {"simulated_seconds": 60.0, "simulated_time": 60.0 * line["round"], "simulated_joules": 5e3}
                if line["round"]
                else {}
            )
            for line in lines
        ]
        (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in timed))
    page = write_report([folder], tmp_path / "report.html").read_text()
    results = (tmp_path / "RESULTS.md").read_text() if (tmp_path / "RESULTS.md").exists() else ""
    results = results or (tmp_path / "report.md").read_text()
    assert ("hours of simulated time" in page) == has_clock
    assert ("<th>simulated time</th>" in page) == has_clock
    assert ("kilojoules of simulated devices" in page) == has_clock
    assert (" kJ |" in results) == (" kJ</td>" in page) == has_clock
    assert ("## Simulated time" in results) == has_clock
