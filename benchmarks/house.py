"""How a newcomer meets the package: files that one round visits, files and names by folder, as a table.

    python benchmarks/house.py [CHECKOUT] [--files]

`--files` lists the files of the round instead.
Reads the source of CHECKOUT (default: here) and traces one round of a tiny federated run of its `antiphon`.
"""

from __future__ import annotations

import ast
import json
import random
import sys
import tempfile
import threading
import wave
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from types import FrameType
from typing import Any

# The recipe `fedavg`, so small that it takes seconds. Journal and checkpoint in every round.
SETTINGS = [
    "frontend.dim=8",
    "model.encoder.dim=16",
    "model.encoder.num_layers=1",
    "model.encoder.num_heads=2",
    "model.encoder.kernel_size=3",
    "model.encoder.stack=2",
    "runs.seed.rounds.total=1",
    "runs.seed.algorithm.local.steps=2",
    "runs.fedavg.rounds.total=3",
    "runs.fedavg.rounds.cohort=3",
    "runs.fedavg.rounds.save_every=1",
]


# --- One round ------------------------------------------------------------------------------------


@dataclass
class Trace:
    """Calls of functions of a package, from one round's call of `Algorithm.round` to the next one's.

    Only calls by the engine count as a round's: wrappers call `round` too.
    """

    package: Path
    files: Counter[str] = field(default_factory=Counter)  # file -> its calls
    num_changes: int = 0  # calls into another file than the call before
    num_rounds: int = 0
    last: str = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(str(self.package)):
            return
        file = Path(frame.f_code.co_filename).relative_to(self.package).as_posix()
        caller = frame.f_back.f_code.co_filename if frame.f_back else ""
        if frame.f_code.co_name == "round" and caller == str(self.package / "engine.py"):
            self.num_rounds += 1
        if self.num_rounds != 2:
            return
        self.files[file] += 1
        if threading.current_thread() is threading.main_thread():
            self.num_changes += file != self.last
            self.last = file


def trace_round(checkout: Path, validated: bool) -> Trace:
    """Of the second round of a run: all its files, from the cohort to the checkpoint."""
    import antiphon

    package = Path(antiphon.__file__).parent
    assert package == checkout / "antiphon", f"{package} is not that of {checkout}: set PYTHONPATH"
    trace = Trace(package)
    settings = [*SETTINGS, f"runs.fedavg.rounds.valid_every={int(validated)}"]
    experiment = antiphon.override(antiphon.recipe("fedavg"), settings)
    with tempfile.TemporaryDirectory() as folder:
        antiphon.import_corpus(write_speech(Path(folder) / "speech"), Path(folder) / "corpus")
        antiphon.run_experiment(experiment, Path(folder) / "corpus", Path(folder) / "out", only=["seed"])
        threading.setprofile(trace)
        sys.setprofile(trace)
        try:
            antiphon.run_experiment(
                experiment, Path(folder) / "corpus", Path(folder) / "out", resume=True, only=["fedavg"]
            )
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    assert trace.num_rounds == 3, f"{trace.num_rounds} rounds were traced"
    return trace


def write_speech(folder: Path) -> Path:
    """A manifest and WAV files of noise: twelve speakers, five utterances each."""
    folder.mkdir()
    noise, rows = random.Random(0), []
    for speaker in range(12):
        for number in range(5):
            name = f"s{speaker:02d}-{number}"
            with wave.open(str(folder / f"{name}.wav"), "wb") as file:
                file.setparams((1, 2, 16000, 0, "NONE", ""))
                file.writeframes(noise.randbytes(2 * 8000))
            split = "pool" if speaker < 8 else "heldout" if speaker < 10 else "test"
            row = {"id": name, "path": f"{name}.wav", "split": split, "speaker": f"s{speaker:02d}"}
            rows.append({**row, "text": "abc de" if number % 2 else "cab", "duration": 0.5})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


# --- The source -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Module:
    """A module of a package: its path within it, and its syntax."""

    path: str
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """Its folder, or its own name if it lies in the root."""
        return Path(self.path).parts[0].removesuffix(".py")

    @property
    def stem(self) -> str:
        return Path(self.path).stem


def read_modules(package: Path) -> list[Module]:
    files = sorted(package.rglob("*.py"))
    texts = {file.relative_to(package).as_posix(): file.read_text(encoding="utf-8") for file in files}
    return [Module(path, text, ast.parse(text)) for path, text in texts.items()]


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    return (part for part in ast.walk(node) if isinstance(part, ast.Call))


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} | {
        part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)
    }


def functions_of(module: Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef))


def algorithm_classes(modules: list[Module]) -> dict[str, str]:
    """Class -> its file: what has `init` and `round` in algorithms/."""
    found = {}
    for module in modules:
        for node in module.tree.body:
            if module.room == "algorithms" and isinstance(node, ast.ClassDef):
                methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                if {"init", "round"} <= methods:
                    found[node.name] = module.path
    return found


def instance_tests(modules: list[Module]) -> list[str]:
    """`isinstance` tests on algorithms outside algorithms/, as file:line."""
    classes = set(algorithm_classes(modules))
    return [
        f"{module.path}:{call.lineno}"
        for module in modules
        if module.room != "algorithms"
        for call in calls_in(module.tree)
        if isinstance(call.func, ast.Name)
        and call.func.id == "isinstance"
        and names_in(call.args[1]) & classes
    ]


def round_loops(modules: list[Module]) -> list[str]:
    """Functions outside algorithms/ that loop and call `round` of an algorithm, themselves or by a method."""
    found = []
    for module in modules:
        if module.room == "algorithms":
            continue
        functions = list(functions_of(module))
        calling = {f"self.{f.name}" for f in functions if any(is_round(call) for call in calls_in(f))}
        for function in functions:
            loops = [node for node in ast.walk(function) if isinstance(node, ast.For | ast.While)]
            called = [call for loop in loops for call in calls_in(loop)]
            if any(is_round(call) or ast.unparse(call.func) in calling for call in called):
                found.append(f"{module.path}: {function.name}")
    return found


def is_round(call: ast.Call) -> bool:
    """`algorithm.round(state, cohort, pool)`."""
    return isinstance(call.func, ast.Attribute) and call.func.attr == "round" and len(call.args) == 3


def repeated_names(modules: list[Module]) -> dict[str, list[str]]:
    """Base names of more than one file (`__init__` apart)."""
    paths = defaultdict(list)
    for module in modules:
        paths[module.stem].append(module.path)
    return {stem: many for stem, many in paths.items() if len(many) > 1 and stem != "__init__"}


def near_names(modules: list[Module]) -> list[tuple[str, str]]:
    """Names that differ by one letter more."""
    stems = sorted({module.stem for module in modules})
    return [(a, b) for a, b in combinations(stems, 2) if len(b) == len(a) + 1 and is_one_letter_longer(a, b)]


def is_one_letter_longer(short: str, long: str) -> bool:
    return any(long[:at] + long[at + 1 :] == short for at in range(len(long)))


def recipe_files(modules: list[Module]) -> tuple[list[str], list[str]]:
    """The files of recipes/, and those that define a recipe which its `__init__` names."""
    files = [module for module in modules if module.room == "recipes"]
    index = next(module for module in files if module.stem == "__init__")
    named = names_in(index.tree)
    holding = [
        module.path
        for module in files
        if module is not index
        and any(isinstance(node, ast.FunctionDef) and node.name in named for node in module.tree.body)
    ]
    return [module.path for module in files], holding


def places_of(algorithm: str, checkout: Path, modules: list[Module]) -> list[str]:
    """Files of package, tests and docs, but its own and other algorithms', that name the class."""
    others = [module for module in modules if module.room != "algorithms"]
    inside = [module.path for module in others if algorithm in names_in(module.tree)]
    outside = [
        path.relative_to(checkout).as_posix()
        for folder in ("tests", "docs")
        for path in sorted((checkout / folder).rglob("*"))
        if path.suffix in (".py", ".md") and f"{algorithm}(" in path.read_text(encoding="utf-8")
    ]
    return inside + outside


def largest_commands(modules: list[Module], num: int = 3) -> list[tuple[str, int, int]]:
    """Functions of the command line by their lines: (file: name, lines, parameters)."""
    sizes = []
    for module in modules:
        if module.room == "cli" or module.room.startswith("cli_"):
            for function in functions_of(module):
                length = (function.end_lineno or 0) - function.lineno + 1
                num_parameters = len(function.args.args) + len(function.args.kwonlyargs)
                sizes.append((f"{module.path}: {function.name}", length, num_parameters))
    return sorted(sizes, key=lambda size: -size[1])[:num]


# --- The table ------------------------------------------------------------------------------------


def table_rows(checkout: Path) -> list[tuple[str, str]]:
    package = checkout / "antiphon"
    modules = read_modules(package)
    plain, validated = (trace_round(checkout, validated) for validated in (False, True))
    imports = [
        node for module in modules for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom)
    ]
    num_imports = sum((node.module or "").split(".")[0] == "antiphon" for node in imports)
    root = [module for module in modules if "/" not in module.path]
    rules = {module.room for module in modules} - {"__init__", "__main__"}
    folders = {module.room for module in modules if "/" in module.path}
    recipes, holding = recipe_files(modules)
    repeated, near = repeated_names(modules), near_names(modules)
    tests = instance_tests(modules)
    places = {name: len(places_of(name, checkout, modules)) for name in algorithm_classes(modules)}
    loops = round_loops(modules)
    commands = largest_commands(modules)
    num_lines = sum(len(module.text.splitlines()) for module in modules)
    return [
        ("modules, lines, imports of each other", f"{len(modules)}, {num_lines:,}, {num_imports}"),
        (
            "one round of 3 clients with its checkpoint: files visited, changes of file",
            f"{len(plain.files)}, {plain.num_changes}",
        ),
        (
            "the same with validation on 2 speakers",
            f"{len(validated.files)}, {validated.num_changes}",
        ),
        ("Python files in the package's root", str(len(root))),
        ("files in `recipes/`, those with a recipe", f"{len(recipes)}, {len(holding)}"),
        (
            "base names used twice",
            f"{len(repeated)} by {sum(map(len, repeated.values()))} files: {', '.join(sorted(repeated))}",
        ),
        ("names one letter apart", f"{len(near)}: {', '.join('/'.join(pair) for pair in near)}"),
        ("rules of the import test, folders", f"{len(rules)}, {len(folders)}"),
        ("`isinstance` tests on algorithms outside `algorithms/`", str(len(tests))),
        (
            "files that name an algorithm's class (package outside `algorithms/`, tests, docs)",
            f"{min(places.values())} to {max(places.values())}",
        ),
        ("round loops", f"{len(loops)}: {'; '.join(loops)}"),
        (
            "largest functions of the command line",
            "; ".join(f"{name}, {length} lines, {num} parameters" for name, length, num in commands),
        ),
    ]


def main() -> None:
    folders = [argument for argument in sys.argv[1:] if argument != "--files"]
    checkout = Path(folders[0] if folders else ".").resolve()
    sys.path.insert(0, str(checkout))
    if "--files" in sys.argv:
        plain, validated = (trace_round(checkout, validated).files for validated in (False, True))
        print("\n".join(f"{file}{' (validation)' * (file not in plain)}" for file in sorted(validated)))
        return
    print("| question | answer |")
    print("| --- | --- |")
    for question, answer in table_rows(checkout):
        print(f"| {question} | {answer} |")


if __name__ == "__main__":
    main()
