"""The direction of imports, read from the source of every module, and the shape of the package."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import antiphon

ROOT = Path(antiphon.__file__).parent

# Room (a folder or a module of the root) -> its level. A room imports itself and rooms of lower levels.
LEVELS = {
    "records": 1,
    "registry": 1,
    "core": 2,
    "config": 2,
    "seeding": 2,
    "scoring": 3,
    "data": 4,
    "privacy": 4,
    "server": 4,
    "tasks": 5,
    "pools": 6,
    "report": 6,
    "algorithms": 7,
    "engine": 7,
    "models": 7,
    "secure_aggregation": 7,
    "lm": 8,
    "recognizer": 8,
    "decoding": 9,
    "clients": 10,
    "personalisation": 10,
    "experiment": 11,
    "exporting": 12,
    "federation": 12,
    "recipes": 12,
    "workflows": 13,
    "cli": 14,
}
NOT_ROOMS = {"__main__"}  # calls the command line
MAX_ROOT_FILES = 8
# One subject in two layers may have one name.
SHARED_NAMES: dict[str, set[str]] = {}

# What must be importable without its extra: these are imported where they are used.
EXTRAS = {
    "cryptography",
    "soundfile",
    "soxr",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "lhotse",
    "espeakng_loader",
    "ttspico",
    "scipy",
    "mpi4py",
    "transformers",
    "peft",
    "dp_accounting",
    "mlflow",
    "wandb",
    "pyarrow",
    "nvflare",
    "psutil",
    "flwr",
    "httpx",
    "starlette",
    "uvicorn",
}
# What runs in the processes of NVFLARE and Flower alone.
INSIDE_EXTRAS = {
    f"antiphon.federation.{name}"
    for name in ("nvflare_relay", "nvflare_streams", "flower_relay", "flower_site")
}
# Modules that are of no use without an extra: others import them only inside functions.
NEED_EXTRAS = {
    "antiphon.secure_aggregation.masks",
    "antiphon.secure_aggregation.member",
    "antiphon.secure_aggregation.record_files",
    "antiphon.secure_aggregation.secure_pool",
}
UNSAFE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}

MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


def imports_of(path: Path, nested: bool = True) -> set[str]:
    """Full names of what a module imports; with `nested`, inside functions too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree) if nested else tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room_of(name: str) -> str | None:
    """The room of antiphon a full name belongs to; None for anything else."""
    first, *rest = name.split(".")
    return rest[0] if first == "antiphon" and rest else None


def rooms_imported(path: Path) -> set[str]:
    return {room for name in imports_of(path) if (room := room_of(name)) is not None}


def modules_imported(path: Path) -> set[str]:
    """Modules of antiphon that a module names in its imports."""
    names = {name if name in MODULES else name.rpartition(".")[0] for name in imports_of(path)}
    return names & MODULES.keys()


def test_every_room_has_its_level() -> None:
    rooms = {room for name in MODULES if (room := room_of(name)) is not None}
    assert rooms == LEVELS.keys() | NOT_ROOMS


@pytest.mark.parametrize("name", [name for name in MODULES if room_of(name) in LEVELS])
def test_a_module_imports_only_rooms_of_lower_levels(name: str) -> None:
    room = room_of(name)
    assert room is not None
    too_high = {
        other for other in rooms_imported(MODULES[name]) if other != room and LEVELS[other] >= LEVELS[room]
    }
    assert not too_high, f"{name} (level {LEVELS[room]}) imports {sorted(too_high)}"


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Imports inside functions count: they hide a circle, they do not open it."""
    imported = {name: modules_imported(path) - {name} for name, path in MODULES.items() if name != "antiphon"}
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


def test_the_root_holds_what_everything_is_written_in() -> None:
    files = sorted(path.name for path in ROOT.glob("*.py"))
    assert len(files) <= MAX_ROOT_FILES, files


def test_a_file_name_stands_for_one_thing() -> None:
    rooms_by_name = defaultdict(list)
    for name in MODULES:
        room = room_of(name)
        if room is not None and MODULES[name].stem != "__init__":
            rooms_by_name[MODULES[name].stem].append(room)
    shared = {stem: rooms for stem, rooms in rooms_by_name.items() if len(rooms) > 1}
    undeclared = {stem: rooms for stem, rooms in shared.items() if SHARED_NAMES.get(stem) != set(rooms)}
    assert not undeclared


def test_core_imports_torch_and_the_registry_and_nothing_else() -> None:
    names = {
        name for name in imports_of(MODULES["antiphon.core"]) if not name.startswith("antiphon.registry.")
    }
    assert {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) == {"torch"}


def test_algorithms_meet_clients_through_task_kinds_alone() -> None:
    forbidden = {"clients", "models", "pools", "data", "decoding", "engine"}
    for name, path in MODULES.items():
        if room_of(name) == "algorithms":
            assert not rooms_imported(path) & forbidden, name


def test_nobody_else_asks_which_algorithm_one_is() -> None:
    """No `isinstance` test on a class of algorithms/ outside of it: protocols and methods answer instead."""
    for name, path in MODULES.items():
        classes = {full.rpartition(".")[2] for full in imports_of(path) if room_of(full) == "algorithms"}
        if room_of(name) == "algorithms" or not classes:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                asked = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
                assert not asked & classes, f"{name}:{node.lineno} asks for {sorted(asked & classes)}"


def test_the_report_works_without_torch() -> None:
    """Neither the report's modules nor what they import name torch."""
    waiting = [name for name in MODULES if room_of(name) == "report"]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        tops = {imported.split(".")[0] for imported in imports_of(MODULES[name])}
        assert "torch" not in tops, name
        waiting += modules_imported(MODULES[name])


@pytest.mark.parametrize("name", sorted(MODULES.keys() - INSIDE_EXTRAS))
def test_extras_are_imported_only_where_they_are_used(name: str) -> None:
    imported = imports_of(MODULES[name], nested=False)
    if name not in NEED_EXTRAS:
        assert not {module.split(".")[0] for module in imported} & EXTRAS
        assert not {module.rpartition(".")[0] for module in imported} & NEED_EXTRAS


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
