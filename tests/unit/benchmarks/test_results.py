"""Every result in benchmarks/results says what made it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RESULTS = sorted((Path(__file__).parents[3] / "benchmarks" / "results").glob("*.json"))
# Made on a GPU before results named their commit. The next run on a GPU replaces them: remove the name then.
WITHOUT_COMMIT = {
    "memory-gpu.json",
    "pruning-gpu-large-medium.json",
    "pruning-gpu-large.json",
    "pruning-gpu.json",
    "pruning-tables.json",
    "self-training.json",
    "session-adaptation.json",
    "stacked.json",
    "table1-trials.json",
    "table1.json",
}
NOTE = "made before results named their commit"
COMMIT = re.compile(r"[0-9a-f]{12}\+?")


def values_of(tree: Any, key: str) -> Iterator[Any]:
    """Yield all values of a key in a tree."""
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    if isinstance(tree, dict) and key in tree:
        yield tree[key]
    for item in items:
        yield from values_of(item, key)


def missing_in(result: dict[str, Any], name: str) -> list[str]:
    """Return what a result does not say about how it was made."""
    versions = result.get("versions") or {}
    if name in WITHOUT_COMMIT:
        is_dated = result.get("commit", "") is None and result.get("note") == NOTE
    else:
        is_dated = bool(COMMIT.fullmatch(str(result.get("commit"))))
    said = {
        "command": str(result.get("command", "")).startswith("python benchmarks/"),
        "commit": is_dated,
        "versions": {"python", "torch", "numpy"} <= versions.keys(),
        "device": bool(result.get("device")),
        "seeds": any(values_of(result, "seeds")) or not any(values_of(result, "by_seed")),
    }
    return [key for key, is_there in said.items() if not is_there]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_result_says_how_it_was_made(path: Path) -> None:
    assert missing_in(json.loads(path.read_text()), path.name) == []


def test_results_without_a_commit_are_still_there() -> None:
    assert {path.name for path in RESULTS} >= WITHOUT_COMMIT


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({}, []),
        ({"commit": None}, ["commit"]),
        ({"commit": None, "note": NOTE}, ["commit"]),
        ({"commit": "main"}, ["commit"]),
        ({"device": None, "versions": {}}, ["versions", "device"]),
        ({"rows": [{"wer": {"by_seed": [0.1]}}]}, ["seeds"]),
        ({"rows": [{"seeds": [0], "wer": {"by_seed": [0.1]}}]}, []),
        ({"command": ""}, ["command"]),
    ],
)
def test_a_new_result_that_says_too_little_is_found(change: dict[str, Any], missing: list[str]) -> None:
    about = {"command": "python benchmarks/x.py", "commit": "0123456789ab+", "device": "cpu"}
    versions = {"python": "3.12", "torch": "2.13", "numpy": "2.4"}
    assert missing_in({**about, "versions": versions, **change}, "new.json") == missing
