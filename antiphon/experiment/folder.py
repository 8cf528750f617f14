"""The folder of an experiment, which belongs to one experiment on one corpus; versions and commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from antiphon import config
from antiphon.experiment.settings import Experiment, Run
from antiphon.records.files import make_folder, write_json
from antiphon.records.folders import check_new_folder
from antiphon.records.lock import locked
from antiphon.records.reading import read_as
from antiphon.records.run_files import ExperimentFile

PACKAGES = "antiphon torch numpy safetensors sentencepiece onnxruntime rapidfuzz transformers peft"


def lock_folder(
    stack: ExitStack, out: Path, experiment: Experiment, resume: bool, only: str | Sequence[str] = ()
) -> None:
    """Check a folder as `check_folder` does, and lock it until the stack is closed."""
    check_folder(out, experiment, resume, only)
    stack.enter_context(locked(out))
    check_folder(out, experiment, resume, only)  # another process may have written to it meanwhile


def check_folder(out: Path, experiment: Experiment, resume: bool, only: str | Sequence[str] = ()) -> None:
    """Refuse a folder that has other files, or an experiment that is not the same or is not resumed.

    Also refuses runs named in `only` that cannot begin: a wrong command must not leave a folder.
    """
    check_new_folder(out)
    _check_chosen(out, experiment.chosen(only))
    path = out / "experiment.json"
    now = config.to_dict(experiment)  # refuses what could not be stored
    if not os.path.lexists(path):  # a link that leads nowhere is damage, which is found when it is read
        # `antiphon report OUT --follow` may wait for the first run with a page in the folder.
        if out.exists() and any(path.name != "report.html" for path in out.glob("[!.]*")):
            raise ValueError(f"{out} is not empty and holds no experiment: choose another folder (--out)")
        return
    if not resume:
        raise ValueError(
            f"{out} holds an experiment already: add --resume to go on (in Python: resume=True), or choose "
            "another folder (--out)"
        )
    # A setting that did not exist when the configuration was written has its default.
    before = config.to_dict(config.from_dict(Experiment, read_as(ExperimentFile, path).config, str(path)))
    # A run may get more rounds, unless other runs start from its model or are taught by it.
    used = {name for run in experiment.runs.values() for name in (run.start_run, run.teacher_run)}
    longer = {f"runs.{name}.rounds.total" for name in experiment.runs.keys() - used}
    changed = [
        (key, old, new)
        for key, old, new in _differences(before, now)
        # min_clients does not change rounds that had enough answers.
        if not (key in longer and new > old) and not key.endswith(".rounds.min_clients")
    ]
    if changed:
        lines = "".join(f"\n  {key}: was {old!r}, now {new!r}" for key, old, new in changed[:10])
        raise ValueError(f"{out} cannot be resumed with another configuration:{lines}")


def _check_chosen(out: Path, runs: Mapping[str, Run]) -> None:
    """Refuse a run that needs another one which is neither finished nor carried out now."""
    for name, run in runs.items():
        for need, role in ((run.start_run, "starts from"), (run.teacher_run, "is taught by")):
            if need and need not in runs and not (out / need / "model" / "model.safetensors").exists():
                raise ValueError(
                    f"run {name!r} {role} {need!r}, which has not finished in {out}: add --only {need} "
                    f"(in Python: only=[{need!r}, …]), or leave out --only"
                )


def _differences(before: Any, now: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(now, dict):
        keys: Sequence[str] = [*before, *(key for key in now if key not in before)]
        return [
            difference
            for key in keys
            for difference in _differences(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))
        ]
    return [] if before == now else [(path, before, now)]


def claim_folder(out: Path, experiment: Experiment, data: Path, fingerprint: str) -> None:
    """Write experiment.json; refuse to resume with another corpus."""
    path = out / "experiment.json"
    if path.exists() and read_as(ExperimentFile, path).fingerprint != fingerprint:
        raise ValueError(f"{out} cannot be resumed: {data} is not the corpus it began with, or was changed")
    make_folder(out)
    body = {
        "format": ExperimentFile.format,
        "recipe": experiment.recipe,
        "data": str(data.resolve()),
        "fingerprint": fingerprint,
        "runs": list(experiment.runs),
        "config": config.to_dict(experiment),
    }
    write_json(path, body)


def corpus_of(run: Path) -> Path | None:
    """Return the corpus that a run was trained on; None if its folder is not part of an experiment."""
    about = run.resolve().parent / "experiment.json"
    return Path(read_as(ExperimentFile, about).data) if about.exists() else None


def versions() -> dict[str, str]:
    """Return the version of Python and of each package that is installed."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES.split():
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def commit() -> str | None:
    """Return the commit of this checkout, with a + if files were changed, or None outside a checkout.

    The environment variable ANTIPHON_COMMIT comes first: it is for copies of a checkout, which can have a
    repository of their own.
    """
    if told := os.environ.get("ANTIPHON_COMMIT"):
        return told
    here = Path(__file__).parents[2]
    if not (here / ".git").exists():
        return None
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        return f"{head}+" if _git(here, "status", "--porcelain", "--untracked-files=no") else head
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
