"""Names of runs and splits become names of folders: none may lead out of its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from world import write_source

from antiphon.config import from_dict, to_dict
from antiphon.experiment.settings import Experiment, Run
from antiphon.records.files import check_name

BAD = [
    "",
    ".",
    "..",
    "../victim",
    "a/b",
    "/etc",
    "a\\b",
    "a\0b",
    "a\nb",
    ".hidden",
    " a",
    "a ",
    "x" * 201,
    "é" * 101,
]
GOOD = ["dga", "softmax-0.3", "dev-clean", "a b", "名", "x" * 200]


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_is_no_plain_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a folder: rename it"):
        check_name(name, "run", "rename it")


@pytest.mark.parametrize("name", GOOD)
def test_plain_names_are_taken(name: str, tmp_path: Path) -> None:
    check_name(name, "run", "rename it")
    (tmp_path / name).mkdir()
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["../victim", "a/b", ".", ""])
def test_an_experiment_has_no_run_with_such_a_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"run .* cannot be the name of a folder"):
        Experiment(runs={name: Run(start_run="")})
    written = to_dict(Experiment(runs={"fine": Run(start_run="")}))
    written["runs"] = {name: written["runs"]["fine"]}
    with pytest.raises(ValueError, match="cannot be the name of a folder"):
        from_dict(Experiment, written)


@pytest.mark.parametrize("name", ["experiment.json", "report.html", "RESULTS.md"])
def test_a_run_cannot_have_the_name_of_a_file_of_the_experiment(name: str) -> None:
    with pytest.raises(ValueError, match="has the name of a file of the experiment"):
        Experiment(runs={name: Run(start_run="")})


def test_a_corpus_with_such_a_split_is_not_imported(tmp_path: Path) -> None:
    import antiphon

    source = write_source(tmp_path / "source")
    manifest = source / "manifest.jsonl"
    manifest.write_text(manifest.read_text().replace('"pool"', '"../../pool"'))
    with pytest.raises(ValueError, match=r"split '../../pool' cannot be .*--rename-split"):
        antiphon.import_corpus(source, tmp_path / "corpus")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
