"""Where a result comes from: versions and commit, so that it can be made again."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path

PACKAGES = (
    "antiphon",
    "torch",
    "numpy",
    "safetensors",
    "sentencepiece",
    "onnxruntime",
    "rapidfuzz",
    "transformers",
    "peft",
)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit this package is checked out at, with a + if files were changed; None outside a checkout."""
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
