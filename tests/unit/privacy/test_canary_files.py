from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.privacy.canary_scores import CANARIES_FOLDER, CanaryRound, read_rounds, write_round

FIRST = CanaryRound(1, 1.5, 1e-6, 0.0, 0.5, (1.0,), included=(True,), turns=(True,), seen=(0.75,))


def test_rounds_come_back_in_order(tmp_path: Path) -> None:
    rounds = [replace(FIRST, round=number) for number in (1, 2)]
    for found in reversed(rounds):
        write_round(tmp_path, found)
    assert read_rounds(tmp_path) == rounds


def test_rounds_that_are_missing_damaged_or_of_another_run_are_named(tmp_path: Path) -> None:
    paths = [tmp_path / CANARIES_FOLDER / f"round-00000{number}.json" for number in (1, 2, 3)]
    for number in (1, 2, 3):
        write_round(tmp_path, replace(FIRST, round=number))
    paths[0].write_text(paths[0].read_text().replace("0.75", "0.25"))
    with pytest.raises(ValueError, match=r"round-000001\.json is damaged, or was edited"):
        read_rounds(tmp_path)
    write_round(tmp_path, replace(FIRST, included=(False,)))
    with pytest.raises(ValueError, match=r"round-000002\.json does not fit round-000001\.json"):
        read_rounds(tmp_path)
    for path in paths[:2]:
        path.unlink()
        with pytest.raises(ValueError, match=r"round-000001\.json is missing"):
            read_rounds(tmp_path)
