from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.report import figures
from antiphon.report.html import render
from antiphon.report.results import results_markdown
from antiphon.report.run_folder import RunFolder
from antiphon.report.tables import weights_by_kind

WEIGHTS = [{"a": 0.6, "b": 0.3, "c": 0.1}, {"a": 0.5, "b": 0.5}, {"b": 0.75, "c": 0.25}]


def run_with(corrupted: dict[str, float]) -> RunFolder:
    journal = [
        {"round": number, "clients": {name: {"weight": weight} for name, weight in weights.items()}}
        for number, weights in enumerate(WEIGHTS, 1)
    ]
    about = {"name": "dga", "rounds": 3, "num_clients": 3, "corrupted": corrupted}
    return RunFolder(Path("dga"), "dga", about, journal, [], {})


def test_weights_of_clean_and_corrupted_clients_are_means_over_an_equal_share() -> None:
    kinds = weights_by_kind(run_with({"c": 1.0, "b": 0.4}))
    (rounds, clean), (bad_rounds, bad) = kinds["clean"], kinds["corrupted"]
    np.testing.assert_array_equal(rounds, [1, 2, 3])
    np.testing.assert_allclose(clean, [3 * 0.45, 1.0, 1.5], rtol=1e-6)
    np.testing.assert_array_equal(bad_rounds, [1, 3])  # nobody was corrupted in the second
    np.testing.assert_allclose(bad, [0.3, 0.5], rtol=1e-6)


@pytest.mark.parametrize(
    "corrupted", [{}, {"c": 0.4}, {"a": 1.0, "b": 1.0, "c": 1.0}], ids=["none", "few", "all"]
)
def test_there_is_nothing_to_compare_without_both_kinds(corrupted: dict[str, float]) -> None:
    assert weights_by_kind(run_with(corrupted)) == {}
    assert len(figures.of_weights(run_with(corrupted))) == 1


def test_a_report_shows_corrupted_clients_where_there_are_any(tmp_path: Path, make_run: Any) -> None:
    path = make_run(tmp_path / "dga", num_clients=9, sharpness=1.0)
    assert "orrupted" not in results_markdown([RunFolder.load(path)])
    about = json.loads((path / "run.json").read_text())
    names = list(RunFolder.load(path).trained[0]["clients"])[:2]
    (path / "run.json").write_text(json.dumps({**about, "corrupted": dict.fromkeys(names, 1.0)}))
    run = RunFolder.load(path)
    means = [values.mean() for _, values in weights_by_kind(run).values()]
    assert f"| dga | 2 of 9 | {means[0]:.3f} | {means[1]:.3f} |" in results_markdown([run])
    page = render([run])
    assert "2 of 9 clients were corrupted" in page
    assert f"* {names[0]}" in page
