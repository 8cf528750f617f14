"""Who may import whom: the direction of the architecture, read off the source of every module."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import antiphon

ROOT = Path(antiphon.__file__).parent

# Part (a root module or a package) -> the other parts of antiphon it may see. Only the top sees everything.
TOP = {
    "recipes",
    "cli",
    "cli_adaptation",
    "cli_corpus",
    "cli_decoding",
    "cli_lm",
    "cli_personalisation",
    "cli_pruning",
    "cli_private",
    "cli_scoring",
    "jobs",
    "screen",
    "workers",
    "__main__",
}
MAY_SEE = {
    "registry": set(),
    "core": {"registry"},
    "seeding": set(),
    "config": {"registry"},
    "views": {"core", "config", "registry"},
    "checkpoint": set(),
    "schedule": set(),
    "server_opt": {"core", "registry"},
    "weighting": {"core", "registry"},
    "clipping": {"core"},
    "observed": {"core", "team"},
    "local": {"core", "seeding"},
    "measure": {"core", "weighting"},
    "kept": {"core", "config", "views"},
    "labelling": {"core", "config", "views"},
    "prunable": {"core", "kept"},
    "privacy": {"core", "seeding"},
    "algorithms": {
        "core",
        "seeding",
        "weighting",
        "server_opt",
        "schedule",
        "local",
        "measure",
        "clipping",
        "kept",
        "prunable",
        "privacy",
        "labelling",
        "views",
    },
    "data": {"core", "seeding"},
    "models": {"core", "seeding", "data", "kept", "prunable"},
    "decoding": {"core", "seeding", "data", "models", "config", "kept"},
    "clients": {
        "core",
        "seeding",
        "registry",
        "data",
        "models",
        "decoding",
        "local",
        "checkpoint",
        "kept",
        "labelling",
        "views",
    },
    "pools": {"core", "seeding", "checkpoint", "views"},
    "team": {"core", "pools"},
    "report": {"core"},
    "record": {"core", "checkpoint", "report"},
    "engine": {"core", "seeding", "observed", "record", "team", "kept"},
}
# What must be importable without its extra: these are imported where they are used.
EXTRAS = {
    "soundfile",
    "soxr",
    "onnxruntime",
    "lhotse",
    "espeakng_loader",
    "ttspico",
    "scipy",
    "mpi4py",
    "transformers",
    "peft",
    "dp_accounting",
}
UNSAFE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}

MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


def imports_of(path: Path, nested: bool = True) -> set[str]:
    """Full names of what a module imports; with `nested`, inside functions too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree) if nested else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part_of(name: str) -> str | None:
    """The part of antiphon a full name belongs to; None for anything else."""
    first, *rest = name.split(".")
    return rest[0] if first == "antiphon" and rest else None


def parts_seen(path: Path) -> set[str]:
    return {part for name in imports_of(path) if (part := part_of(name)) is not None}


def test_every_part_of_the_package_has_its_place() -> None:
    parts = {part for name in MODULES if (part := part_of(name)) is not None}
    assert parts == TOP | MAY_SEE.keys()


def test_the_rules_themselves_go_one_way() -> None:
    placed: set[str] = set()
    while len(placed) < len(MAY_SEE):
        free = {part for part, seen in MAY_SEE.items() if part not in placed and seen <= placed}
        assert free, f"these see each other in a circle: {sorted(MAY_SEE.keys() - placed)}"
        placed |= free


@pytest.mark.parametrize("name", [name for name in MODULES if part_of(name) in MAY_SEE])
def test_a_module_sees_only_what_it_may(name: str) -> None:
    part = part_of(name)
    assert part is not None
    seen = parts_seen(MODULES[name]) - {part}
    assert seen <= MAY_SEE[part], f"{name} imports {sorted(seen - MAY_SEE[part])}"


def test_core_imports_torch_and_the_registry_and_nothing_else() -> None:
    tops = {name.split(".")[0] for name in imports_of(MODULES["antiphon.core"])}
    assert tops - set(sys.stdlib_module_names) == {"torch", "antiphon"}
    assert parts_seen(MODULES["antiphon.core"]) == {"registry"}


def test_the_registry_imports_the_standard_library_alone() -> None:
    tops = {name.split(".")[0] for name in imports_of(MODULES["antiphon.registry"])}
    assert tops <= set(sys.stdlib_module_names)


def test_algorithms_meet_clients_through_task_kinds_alone() -> None:
    for name, path in MODULES.items():
        if part_of(name) == "algorithms":
            assert not parts_seen(path) & {"clients", "models", "pools", "data", "decoding", "engine"}, name


def test_the_report_works_without_torch() -> None:
    for name, path in MODULES.items():
        if part_of(name) == "report":
            assert "torch" not in {imported.split(".")[0] for imported in imports_of(path)}, name


@pytest.mark.parametrize("name", MODULES)
def test_extras_are_imported_only_where_they_are_used(name: str) -> None:
    tops = {imported.split(".")[0] for imported in imports_of(MODULES[name], nested=False)}
    assert not tops & EXTRAS


@pytest.mark.parametrize("name", MODULES)
def test_nothing_that_runs_code_from_files_is_used(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    assert not {imported.split(".")[0] for imported in imports_of(MODULES[name])} & UNSAFE
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) != ("torch", "load"), f"{name}:{node.lineno}"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant), name
            assert node.value.value is False, name


@pytest.mark.parametrize("name", MODULES)
def test_no_module_outgrows_its_reader(name: str) -> None:
    lines = MODULES[name].read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 330, f"{name} has {len(lines)} lines: what are its two halves?"
