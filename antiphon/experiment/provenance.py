"""Versions and commit of a result, so that it can be reproduced."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from contextlib import suppress
from pathlib import Path

PACKAGES = "antiphon torch numpy safetensors sentencepiece onnxruntime rapidfuzz transformers peft"


def versions() -> dict[str, str]:
    """Return the version of Python and of each package that is installed."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES.split():
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def commit() -> str | None:
    """Return the commit of this checkout, with a + if files were changed; None outside a checkout."""
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
