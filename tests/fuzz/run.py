"""Damaged and hostile inputs of every kind, and what antiphon says about them.

    python tests/fuzz/run.py --cases 5000 --seed 1          # by hand
    python tests/fuzz/run.py --seed 1 --case 17             # one of them again, with what it printed
    python tests/fuzz/run.py --cases 200 --kind folders     # of one kind

sources: sources in every format that can be imported, with one damaged file; `antiphon corpus import`.
folders: folders that antiphon wrote, with one damaged file; all that antiphon reads of them.
settings: YAML files and `--set` with hostile values.
recordings: damaged audio for `antiphon transcribe` and for the `transcribe.py` of an exported model.
texts: damaged ARPA files and N-best lists.

Good outcomes are: the same values as without damage; other values, of a file without checksums; refused, with
the name of the culprit. All others are faults. A case runs in a fork of this process, with limited memory.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "stranger"))

import yaml
from damage import BYTES, HOSTILE, change_value, damage
from foreign_sources import SOURCES, TEXTS
from sources import tone
from written_folders import Folder, files_of, is_named, make_folders, read_corpus

from antiphon import cli, config
from antiphon.decoding.nbest import Hypothesis, NBest, read_nbest, write_nbest
from antiphon.experiment.settings import Experiment
from antiphon.federation.site_policy import SitePolicy
from antiphon.lm.arpa import load_ngram, save_ngram
from antiphon.lm.kneser_ney import estimate
from antiphon.recipes import recipe

PATIENCE = 300.0  # seconds after which a case hangs, also on a busy machine
MEMORY = 6 << 30  # bytes that a case may use beyond what this process has
REFUSED, ACCEPTED = 2, 0
GOOD = ("same", "accepted", "refused")
FAULTS = ("traceback", "died", "hang", "silent", "unnamed", "leftover")
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@dataclass
class Case:
    """A damaged input. `act` runs in a fork: it raises what a command prints, or returns what it read."""

    about: str
    act: Callable[[], object]
    is_named: Callable[[str], bool]
    intact: object = None  # what `act` returns without damage; None if nothing can tell
    undo: Callable[[], None] = lambda: None
    must_vanish: Path | None = None  # what a refusal must not leave


Draw = Callable[[random.Random], Case]


# --- Kinds ----------------------------------------------------------------------------------------


def damaged(path: Path, chance: random.Random) -> tuple[str, Callable[[], None], bool]:
    """Damage a file; return what was done, a function that undoes it, and whether the bytes are the same."""
    whole = path.read_bytes()
    what = damage(path, chance)

    def undo() -> None:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(whole)

    is_same = path.is_file() and not path.is_symlink() and path.read_bytes() == whole
    return what, undo, is_same


def command(*arguments: str | Path) -> int:
    """Run the command line in this process; return its exit code."""
    sys.argv = ["antiphon", *map(str, arguments)]
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def sources(base: Path) -> Draw:
    for name, write in SOURCES.items():
        (base / name).mkdir(parents=True)
        write(base / name)
        with redirect_stdout(io.StringIO()):  # imports what the forks need, too
            assert command("corpus", "import", base / name, base / "intact") == 0, name
        shutil.rmtree(base / "intact")

    def draw(chance: random.Random) -> Case:
        name = chance.choice(list(SOURCES))
        path = chance.choice([one for one in sorted((base / name).rglob("*")) if one.is_file()])
        what, undo, _ = damaged(path, chance)
        target = base / "corpus"

        def act() -> object:
            if code := command("corpus", "import", base / name, target):
                sys.exit(code)
            for part in read_corpus(target):
                assert part is not None
            return None

        def clean() -> None:
            undo()
            shutil.rmtree(target, ignore_errors=True)

        about = f"{name}: {what} of {path.name}"
        return Case(about, act, lambda m: path.name in m or str(base / name) in m, None, clean, target)

    return draw


def folders(base: Path) -> Draw:
    made = make_folders(base)
    intact = {name: folder.digest() for name, folder in made.items()}

    def draw(chance: random.Random) -> Case:
        name = chance.choice(list(made))
        folder: Folder = made[name]
        path = chance.choice(files_of(folder))
        what, undo, is_same = damaged(path, chance)
        # An edited object without its checksum was edited on purpose. A missing file may not be there yet.
        is_checked = is_same or what not in ("change_json", "remove")

        def clean() -> None:
            undo()
            for rest in folder.path.rglob("copy"):
                shutil.rmtree(rest)

        digest = intact[name] if is_checked else None
        return Case(f"{name}: {what} of {path}", folder.digest, lambda m: is_named(path, m), digest, clean)

    return draw


def settings(base: Path) -> Draw:
    base.mkdir()
    examples = [path for path in sorted(EXAMPLES.glob("*.yaml")) if "recipe:" in path.read_text()]
    texts, policy = [path.read_text() for path in examples], (EXAMPLES / "site_policy.yaml").read_text()
    names = ["dga", "fedavg", "scaffold", "pruning", *map(str, examples)]
    path = base / "settings.yaml"

    def read() -> Experiment:
        experiment = recipe(str(path))
        again = config.from_dict(Experiment, json.loads(json.dumps(config.to_dict(experiment))))
        assert again == experiment, "settings change when they are written and read"
        return experiment

    def draw(chance: random.Random) -> Case:
        how = chance.randrange(7)
        if how < 2:
            path.write_bytes(chance.choice(BYTES)(chance.choice(texts).encode(), chance))
            return Case("bytes of YAML", read, lambda m: path.name in m)
        if how == 2:
            tree = change_value(yaml.safe_load(policy), chance)
            damaged_bytes = chance.choice(BYTES)(policy.encode(), chance)
            path.write_bytes(json.dumps(tree).encode() if chance.random() < 0.7 else damaged_bytes)
            return Case("the policy of a site", lambda: SitePolicy.read(path), lambda m: path.name in m)
        if how < 5:
            tree = {"recipe": "dga", **config.to_dict(recipe("dga"))} if chance.random() < 0.5 else None
            tree = change_value(tree or yaml.safe_load(chance.choice(texts)), chance)
            path.write_text(json.dumps(tree))  # YAML, too
            return Case("a value of YAML", read, lambda m: path.name in m)
        keys = list(_keys(config.to_dict(recipe(name := chance.choice(names)))))
        key, value = chance.choice(keys), str(chance.choice(HOSTILE))
        assignment = chance.choice((f"{key}={value}", f"{key}.{value}=1", f"{value}={key}", f"{key}{value}"))
        words = [key.rpartition(".")[2], repr(value)[1:20], assignment[:20]]
        words += [f"key {part!r}" for part in value.split(".")[:1] if part]  # -0.0 is the key 0 of the key -0
        words += [f"{holder}:"] if (holder := key.rpartition(".")[0]) else []  # its values do not go together
        return Case(
            f"--set {assignment[:60]!r} of {name}",
            lambda: config.override(recipe(name), [assignment]),
            lambda m: any(word in m for word in words),
        )

    return draw


def _keys(tree: Any, path: str = "") -> Iterator[str]:
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield f"{path}{key}"
        yield from _keys(value, f"{path}{key}.")


def recordings(base: Path) -> Draw:
    import soundfile

    base.mkdir()
    made = {"out": base.parent / "folders" / "ctc" / "seed", "export": base.parent / "folders" / "export"}
    forms = {"a.wav": "PCM_16", "b.wav": "FLOAT", "c.flac": "PCM_16", "d.ogg": "VORBIS", "e.wav": "PCM_24"}
    for name, form in forms.items():
        soundfile.write(base / name, tone(0.5, 8000 if name == "e.wav" else 16000), 16000, subtype=form)

    def draw(chance: random.Random) -> Case:
        path = base / chance.choice(list(forms))
        what, undo, _ = damaged(path, chance)
        is_export = chance.random() < 0.5

        def act() -> object:
            if is_export:
                sys.argv = ["transcribe.py", str(path)]
                runpy.run_path(str(made["export"] / "transcribe.py"), run_name="__main__")
            sys.exit(command("transcribe", made["out"], path))

        about = f"{'transcribe.py' if is_export else 'antiphon transcribe'}: {what} of {path.name}"
        return Case(about, act, lambda m: path.name in m, undo=undo)

    return draw


def texts(base: Path) -> Draw:
    base.mkdir()
    save_ngram(estimate(list(TEXTS), 3), base / "lm.arpa")
    hypotheses = (Hypothesis("go on", score=-1.5), Hypothesis("go in", score=-2.0))
    lists = [NBest(f"u{n}", hypotheses, text, "s") for n, text in enumerate(TEXTS)]
    write_nbest(base / "lists.jsonl", lists)
    write_nbest(base / "lists.jsonl.gz", lists)
    readers: dict[str, Callable[[Path], object]] = {
        "lm.arpa": load_ngram,
        "lists.jsonl": lambda path: list(read_nbest(path)),
        "lists.jsonl.gz": lambda path: list(read_nbest(path)),
    }

    def draw(chance: random.Random) -> Case:
        path = base / chance.choice(list(readers))
        while True:  # a pipe is a file here: texts may come from another command
            what, undo, _ = damaged(path, chance)
            if what != "replace_by_pipe":
                break
            undo()
        return Case(
            f"{what} of {path.name}",
            lambda: readers[path.name](path) and None,
            lambda m: path.name in m,
            undo=undo,
        )

    return draw


KINDS: dict[str, Callable[[Path], Draw]] = {
    "sources": sources,
    "folders": folders,
    "settings": settings,
    "recordings": recordings,
    "texts": texts,
}
NEEDED = {"recordings": ["folders", "recordings"]}  # kinds that a kind needs, if not only itself
SHARES = {"sources": 40, "folders": 30, "settings": 15, "recordings": 10, "texts": 5}


# --- Forks ----------------------------------------------------------------------------------------


def outcome_of(case: Case, log: Path) -> tuple[str, str]:
    """Run a case in a fork; return its outcome and what it printed."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        _act(case, log)
    deadline = time.monotonic() + PATIENCE
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hang", log.read_text(errors="replace")
        time.sleep(0.002)
    said = log.read_text(errors="replace")
    code = os.waitstatus_to_exitcode(ended[1])
    if code < 0:
        return "died", f"signal {-code}: {said}"
    if "Traceback" in said:
        return "traceback", said
    if code == ACCEPTED:
        return (
            "same" if said.endswith("<same>") else "silent" if said.endswith("<other>") else "accepted"
        ), said
    if case.must_vanish is not None and _is_left(case.must_vanish):
        return "leftover", said
    return ("refused" if case.is_named(said.replace("\n", "")) else "unnamed"), said


def _is_left(target: Path) -> bool:
    return target.exists() or any(target.parent.glob(f".{target.name}*"))


def _act(case: Case, log: Path) -> None:
    """In the fork: exit as a command would."""
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        found = case.act()
        if case.intact is not None:
            print("<same>" if found == case.intact else "<other>", end="")
        code = ACCEPTED
    except SystemExit as stop:
        print(stop.code if isinstance(stop.code, str) else "", file=sys.stderr)
        code = stop.code if isinstance(stop.code, int) else REFUSED
    except (ValueError, OSError) as error:  # what `antiphon` prints as one line
        print(f"error: {error}", file=sys.stderr)
        code = REFUSED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# --- The table ------------------------------------------------------------------------------------


@dataclass
class Table:
    """Counts by kind and outcome."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __str__(self) -> str:
        kinds = list(dict.fromkeys(kind for kind, _ in self.counts))
        lines = [["kind", "cases", *GOOD, *FAULTS]]
        for kind in kinds:
            counts = [self.counts[kind, outcome] for outcome in (*GOOD, *FAULTS)]
            lines.append([kind, *map(str, (sum(counts), *counts))])
        totals = [sum(int(line[place]) for line in lines[1:]) for place in range(1, len(lines[0]))]
        lines.append(["all", *map(str, totals)])
        return "\n".join("  ".join(word.rjust(10) for word in line) for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=200, help="the number of damaged inputs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="only the case with this number")
    parser.add_argument("--kind", choices=list(KINDS), help="one kind; all by default")
    options = parser.parse_args()
    numbers = range(options.cases) if options.case is None else [options.case]
    table, num_bad = Table(), 0
    base = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        needed = NEEDED.get(options.kind, [options.kind]) if options.kind else KINDS
        draws = {kind: KINDS[kind](base / kind) for kind in needed}
        for number in numbers:
            chance = random.Random(f"{options.seed}/{number}")
            (kind,) = chance.choices(list(SHARES), list(SHARES.values()))
            kind = options.kind or kind
            case = draws[kind](chance)
            outcome, said = outcome_of(case, base / "log")
            case.undo()
            table.counts[kind, outcome] += 1
            num_bad += outcome in FAULTS
            if outcome in FAULTS or options.case is not None:
                print(f"{number:5d}  {kind}: {case.about}: {outcome}\n{said[-1500:]}", flush=True)
    finally:
        shutil.rmtree(base)
    print(table)
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
