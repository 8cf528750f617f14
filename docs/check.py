"""Run the commands of README.md and docs/, and compare their output with what the pages print.

    python docs/check.py --list           # every command, and what it needs
    python docs/check.py --quick          # those that need no corpus: seconds
    python docs/check.py                  # all that can run here: more than an hour on 2 cores
    python docs/check.py --page pruning   # one page

The page `robust` takes the longest: 90 trainings. Each page has a folder in `--work`. What pages need and do
not make (the demo, recordings, a corpus) is made once. Times, absolute paths and progress bars are not
compared. If only figures differ, and most of them by little, a command counts as right, because another
processor rounds differently; `--exact` counts it as wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import check_sources

ROOT = Path(__file__).resolve().parents[1]
FIGURE = r"(?<!\w)−?\d+(?:,\d{3})*(?:\.\d+)?(?:e[−+-]?\d+)?(?!\w)"
ANY_LINES = re.compile(r"^ *…$", re.MULTILINE)
MOST = 0.1  # the median difference of figures that a processor may cause
SAME, FIGURES, DIFFERENT, FAILED, NOT_RUN = "same", "figures differ", "DIFFERENT", "FAILED", "not run"


# --- What the pages say ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A command of a page, and the output that the page shows: None if it shows none."""

    page: Path
    line: int
    text: str
    shown: str | None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """README.md and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language on a page."""
    return [body for _, body in numbered_blocks(page, language)]


def numbered_blocks(page: Path, language: str) -> Iterator[tuple[int, str]]:
    """The fenced blocks of a language, each with the number of its first line."""
    text = page.read_text()
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start()) + 2, match[1]


def commands(page: Path) -> list[Command]:
    """The commands of a page in its order: `console` blocks with output, `sh` blocks without."""
    found = []
    for first, block in numbered_blocks(page, "console"):
        for match in re.finditer(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            line = first + block.count("\n", 0, match.start())
            found.append(Command(page, line, re.sub(r" *\\\n *", " ", match[1]), match[2]))
    for first, block in numbered_blocks(page, "sh"):
        found.append(Command(page, first, block.strip(), None))
    demo = re.search(r"<!-- demo table -->\n```\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    if demo:
        line = page.read_text().count("\n", 0, demo.start()) + 3
        found.append(Command(page, line, "antiphon demo", demo[1]))
    return sorted(found, key=lambda command: command.line)


# --- Comparison -----------------------------------------------------------------------------------


def plain(text: str) -> str:
    """The words of an output: without progress bars, boxes, times and the places of line breaks."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r"^ *[\w-]+ +[━╸╺ ]+ \d+/\d+ .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"[\u2500-\u257f]", " ", text)  # boxes and rules
    text = re.sub(r"\b\d+:\d\d(:\d\d)?\b|\b[\d.]+ ?(s|times real time)\b", "TIME", text)
    text = re.sub(r"(?<!\S)/(?:[^\s/]+/)+", "/", text)  # the folders of an absolute path
    return " ".join(text.split())


def number(figure: str) -> float:
    """
    >>> number("−1,020.5")
    -1020.5
    """
    return float(figure.replace(",", "").replace("−", "-"))


def figures_like(shown: str, printed: str) -> list[float] | None:
    """Return the figures that an output has where a page has some; None if its words differ.

    A line `…` of the page stands for any number of lines.
    """
    parts = [
        f"({FIGURE})".join(map(re.escape, re.split(FIGURE, plain(part))))
        for part in re.split(ANY_LINES, shown)
    ]
    found = re.fullmatch(r"\s*.*?\s*".join(parts), plain(printed), re.DOTALL)
    return [number(figure) for figure in found.groups()] if found else None


def compare(shown: str, printed: str) -> str:
    """Say if an output is the one that a page shows: the same, other figures, or different.

    Another processor changes figures a little. If the median difference is more than a tenth, the page shows
    the output of another command.
    """
    figures = figures_like(shown, printed)
    if figures is None:
        return DIFFERENT
    on_page = [
        number(figure) for part in re.split(ANY_LINES, shown) for figure in re.findall(FIGURE, plain(part))
    ]
    differences = [abs(a - b) / max(abs(a), abs(b), 1e-9) for a, b in zip(on_page, figures, strict=True)]
    if not any(differences):
        return SAME
    return FIGURES if statistics.median(differences) <= MOST else DIFFERENT


# --- What a command needs -------------------------------------------------------------------------

# Commands that are not run, by a part of the command.
BY_HAND = {
    "frontend.path=encoder_model.onnx": "needs LibriSpeech, an encoder, and hours of a GPU",
    "librispeech-core.tsv": "needs the archives of LibriSpeech, and hours of a GPU",
    "docs/examples/wav2vec2.yaml": "needs a Hugging Face model in a folder",
    "docs/examples/whisper.yaml": "needs a Hugging Face model in a folder",
    "books.t": "needs a text that is not in the repository",
    "lists.jsonl": "needs N-best lists that are not in the repository",
    "ami_text": "needs a text that is not in the repository",
    "pip install": "changes the environment (tests/integration/test_packaging.py installs the wheel)",
    "docker run": "needs Docker",
    "torchrun": "needs several GPUs or machines",
    "SBATCH": "needs a Slurm cluster",
    "speech.example.org": "needs several machines (tests/integration/test_federation.py runs them here)",
    "--federation": "needs several machines (tests/integration/test_federation.py runs them here)",
}
# Commands that are not run, by a part of their output.
BY_OUTPUT = {
    "another process of this run is gone": "somebody must kill a process",
    "out is in use by process": "needs a second command at the same time",
    "taking over the lock of out": "somebody must kill a process",
    "apt-get install flite": "shows a machine without flite",
}
QUICK = ("antiphon recipes", "antiphon prune --plan", "python docs/examples/private_marginals.py")
REFUSED = ("error: runs.", "error: configuration", "error: corruption")  # before any file is read


def reason_not_to_run(command: Command) -> str:
    """Say why a command cannot be checked; empty if it can."""
    for text, reasons in ((command.text, BY_HAND), (command.shown or "", BY_OUTPUT)):
        for part, reason in reasons.items():
            if part in text:
                return reason
    return "shows no output (tests check its options and settings)" if command.shown is None else ""


def is_quick(command: Command) -> bool:
    """Tell if a command takes seconds and needs no corpus."""
    if command.shown is None or reason_not_to_run(command):
        return False
    return command.text.startswith(QUICK) or command.shown.startswith(REFUSED)


SPLIT = "--split-speakers 0.8,0.1,0.1"
FAIR = "antiphon run docs/examples/fair.yaml --data demo/corpus"
FAIR_RUNS = "--only seed --only fedavg --only hierarchical --only q-fedavg --only agnostic"
STRAIGHT = "antiphon run small.yaml --data corpus --out straight --set runs.seed.rounds.total=2"
MAKERS: dict[str, str | Callable[[Path], None]] = {  # in the order in which they need each other
    "demo": "antiphon demo",
    "recordings": check_sources.write_recordings,
    "hello.wav": check_sources.write_recordings,
    "corpus": f"antiphon corpus import recordings corpus {SPLIT}",
    "straight": STRAIGHT,
    "fair": f"{FAIR} --out fair/0 {FAIR_RUNS} --only feddyn && {FAIR} --out fair/1 --set seed=1 {FAIR_RUNS}",
    "LibriSpeech": check_sources.write_librispeech,
    "kaldi": check_sources.write_kaldi,
    "manifests": check_sources.write_lhotse,
    "nemo": check_sources.write_nemo,
    "en": check_sources.write_common_voice,
    "support": check_sources.write_table,
    "dataset": check_sources.write_parquet,
    "save": check_sources.write_speechbrain,
    "asr1": check_sources.write_espnet,
    "deutsch": check_sources.write_german,
    "untidy": check_sources.write_untidy,
    "voices": check_sources.write_voices,
    "encoder_model.onnx": check_sources.get_encoder,
}
NEEDED_BY = {
    "recordings": "demo",
    "voices": "demo",
    "hello.wav": "recordings",
    "corpus": "recordings",
    "straight": "corpus",
    "fair": "demo",
}
SCRIPTS = {"run_median_norm.py": "demo", "from_python.py": "recordings hello.wav"}


class NotMade(Exception):
    """What a command needs cannot be made on this machine."""


class Workshop:
    """Folders to run commands in: one for each page, and one for what pages share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shared = self.page_folder("shared")

    def page_folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        for link, target in (
            ("docs", ROOT / "docs"),
            ("small.yaml", ROOT / "docs" / "examples" / "small.yaml"),
        ):
            if not (folder / link).is_symlink():
                (folder / link).symlink_to(target)
        if not (folder / "benchmarks").exists():  # a copy, because benchmarks write their results beside them
            shutil.copytree(
                ROOT / "benchmarks", folder / "benchmarks", ignore=shutil.ignore_patterns("results")
            )
        return folder

    def provide(self, command: Command, folder: Path) -> None:
        """Make what a command names, unless its page or the command itself makes it."""
        words = set(re.findall(r"[\w.-]+", command.text.replace("antiphon corpus", "")))
        for script, names in SCRIPTS.items():
            words |= set(names.split()) if script in command.text else set()
        made = re.search(r"--out (\S+)|import \S+ (\S+)", command.text)
        for name in MAKERS:
            making = (made and name in made.groups()) or command.text == f"antiphon {name}"
            if name in words and not making and not (folder / name).exists():
                self.make(name)
                (folder / name).symlink_to(self.shared / name)

    def make(self, name: str) -> None:
        if (self.shared / name).exists():
            return
        if name in NEEDED_BY:
            self.make(NEEDED_BY[name])
        print(f"... making {name}", file=sys.stderr)
        maker, output = MAKERS[name], ""
        if isinstance(maker, str):
            output, _ = run(maker, self.shared)
        else:
            maker(self.shared)
        if not (self.shared / name).exists():
            raise NotMade(f"{name} could not be made\n{output}".strip())

    def check(self, command: Command) -> tuple[str, str]:
        """Run a command. Return the result and the output."""
        folder = self.page_folder(command.page.stem)
        if not is_quick(command):
            try:
                self.provide(command, folder)
            except NotMade as reason:
                return NOT_RUN, str(reason)
        if "is damaged: state.safetensors was changed." in (command.shown or ""):
            (state,) = sorted(folder.glob("twin/dga/checkpoints/*30/state.safetensors"))
            state.write_bytes(state.read_bytes()[:-1] + b"?")
        journal = None
        if (command.shown or "").startswith("^C"):
            journal = folder / "twin" / "dga" / "journal.jsonl"
        output, code = run(command.text, folder, interrupt_after=journal)
        result = compare((command.shown or "").removeprefix("^C\n"), output)
        expected_failure = re.search(r"^(error: |Stopped: )", command.shown or "", re.MULTILINE)
        return (FAILED if code and not expected_failure else result), output


def run(text: str, folder: Path, interrupt_after: Path | None = None) -> tuple[str, int]:
    """Run a shell command: its output and exit code. Press Ctrl-C after round 11 of a journal."""
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": os.pathsep.join([str(ROOT), "docs/examples"])}
    text = re.sub(r"(?<!\S)antiphon(?= )", f"{shlex.quote(sys.executable)} -m antiphon", text)
    text = re.sub(r"(?<!\S)python(?= )", shlex.quote(sys.executable), text)
    text = re.sub(r"PYTHONPATH=(\S+)", r"PYTHONPATH=\1:$PYTHONPATH", text)
    process = subprocess.Popen(
        ["bash", "-c", f"exec {text}" if interrupt_after else text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while interrupt_after and process.poll() is None:
        if interrupt_after.exists() and interrupt_after.read_text().count("\n") > 11:
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.02)
    output, _ = process.communicate()
    return output, process.returncode


# --- The command line -----------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="list the commands and run nothing")
    parser.add_argument("--page", action="append", help="the name of a page, such as pruning; repeatable")
    parser.add_argument("--quick", action="store_true", help="only commands that take seconds")
    parser.add_argument("--exact", action="store_true", help="figures must be the same")
    parser.add_argument("--work", type=Path, help="the folder to work in; a new one by default")
    options = parser.parse_args(arguments)
    chosen = [page for page in pages() if not options.page or page.stem in options.page]
    if not chosen:
        parser.error(f"no page {options.page}; pages: {', '.join(page.stem for page in pages())}")
    listed = [command for page in chosen for command in commands(page)]
    if options.quick:
        listed = [command for command in listed if is_quick(command)]
    if options.list:
        for command in listed:
            first, more = command.text.splitlines()[0], "\n" in command.text
            speed = reason_not_to_run(command) or ("quick" if is_quick(command) else "minutes")
            print(f"{command.place}: {first}{' …' if more else ''}\n    {speed}")
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else children in the background ignore it
    workshop = Workshop((options.work or Path(tempfile.mkdtemp(prefix="antiphon-docs-"))).resolve())
    counts = dict.fromkeys((SAME, FIGURES, DIFFERENT, FAILED, NOT_RUN), 0)
    for command in listed:
        result, output = NOT_RUN, reason_not_to_run(command)
        if not output:
            result, output = workshop.check(command)
        counts[result] += 1
        print(f"{result:<14} {command.place}: {command.text.splitlines()[0]}", flush=True)
        if result == NOT_RUN:
            print(f"    {output}", flush=True)
        if result in (DIFFERENT, FAILED) or (options.exact and result == FIGURES):
            print(f"--- the page shows\n{command.shown}--- this machine printed\n{output}---", flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.items()))
    return int(bool(counts[DIFFERENT] + counts[FAILED] + (counts[FIGURES] if options.exact else 0)))


if __name__ == "__main__":
    sys.exit(main())
