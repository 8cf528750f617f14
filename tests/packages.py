"""An installed package without an installer: what `pip install --target` would write for a small one."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

STRANGER = Path(__file__).parent / "stranger"


def install(source: Path, target: Path) -> Path:
    """Copy a project's modules to a folder, with the metadata that Python finds its entry points by."""
    settings = tomllib.loads((source / "pyproject.toml").read_text())
    project = settings["project"]
    name, version = project["name"], project["version"]
    info = target / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    for module in settings["tool"]["setuptools"]["py-modules"]:
        shutil.copy(source / f"{module}.py", target)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{point} = {value}" for point, value in points.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return target
