"""What people install: the wheel and the source package are complete, and work without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


def run(*command: str | Path, **more: object) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=300, check=False, **more
    )  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source package, and the wheel that is built from it."""
    pytest.importorskip("build", reason="pip install build")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, CHECKOUT)
    return folder


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = run("git", "ls-files", "antiphon", cwd=CHECKOUT).split() if (CHECKOUT / ".git").exists() else []
    assert "antiphon/py.typed" in names
    assert all(name.startswith("antiphon/") for name in names)
    assert names >= set(listed)


def test_the_wheel_says_who_wrote_it_and_where_its_papers_are(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        (name,) = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(file.read(name))
    assert metadata["Author"] == "The antiphon contributors"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"federated learning", "speech recognition"} <= set(metadata["Keywords"].split(","))
    papers = dict(line.rsplit(", ", 1) for line in metadata.get_all("Project-URL", []))
    assert len(papers) == 3
    for page in ("README.md", "CITATION.cff"):
        text = (CHECKOUT / page).read_text()
        assert [url for url in papers.values() if url not in text] == [], page


def test_the_source_package_has_the_licence_and_no_tests(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "constraints.txt", "CITATION.cff"} <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_the_wheel_runs_without_the_checkout(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    installed = tmp_path / "installed"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", installed, wheel)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    where = run(
        sys.executable, "-c", "import antiphon; print(antiphon.__file__)", cwd=tmp_path, env=environment
    )
    assert Path(where.strip()).is_relative_to(installed)
    assert "dga" in run(sys.executable, "-m", "antiphon", "recipes", cwd=tmp_path, env=environment)
