"""Tables of trained models, one command each: train all seeds, then measure.

    python benchmarks/tables.py --list
    python benchmarks/tables.py librispeech devices --data CORPUS --encoder ENCODER.onnx --out out --jobs 6

`tables.yaml` lists the tables. The experiments of a table, one for each seed and condition, are trained side
by side, each by `antiphon run` with so many `--jobs`, in OUT/TABLE/CONDITION/SEED. What was begun is resumed,
so a command that ends early can be given again. With `--minutes`, it ends by itself: runs save their state.

A table is measured by its script, once all its experiments have ended. `results/tables.json` then has the
commit, the seeds and the minutes that the runs trained, added up over processes that shared the device.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from common import RESULTS, print_table
from seeds import Trained

from antiphon.experiment.folder import versions
from antiphon.report.formatting import NONE

HERE = Path(__file__).parent
POLL = 0.2  # seconds between two looks at the processes
TO_STOP = 120.0  # seconds that a run may take to save its state


@dataclass(frozen=True)
class Table:
    """An entry of tables.yaml."""

    page: str  # the page that has it
    conditions: Mapping[str, str]  # name -> arguments of `antiphon run`
    measure: str  # a script of this folder and its arguments
    result: str  # the file of results/ that the script writes
    seeds: Sequence[int] = (0, 1, 2)
    own_runs: bool = False  # only the runs that the settings file names, and `seed`

    def experiments(self, folder: Path) -> dict[Path, list[str]]:
        """Return the arguments of `antiphon run` for each experiment, by its folder."""
        return {
            folder / condition / str(seed): [
                *shlex.split(settings),
                *self.only(settings),
                "--set",
                f"seed={seed}",
            ]
            for seed in self.seeds
            for condition, settings in self.conditions.items()
        }

    def only(self, settings: str) -> list[str]:
        """Return the options that choose runs."""
        if not self.own_runs:
            return []
        runs = yaml.safe_load(Path(shlex.split(settings)[0]).read_text(encoding="utf-8"))["runs"]
        return [option for name in dict.fromkeys(("seed", *runs)) for option in ("--only", name)]

    def measuring(self, folder: Path, corpus: Path) -> list[str]:
        """Return the command that measures."""
        folders = " ".join(shlex.quote(str(path)) for path in self.experiments(folder))
        script, *arguments = shlex.split(self.measure.format(folders=folders, out=folder, corpus=corpus))
        return [sys.executable, str(HERE / script), *arguments]


def load(path: Path) -> dict[str, Table]:
    """Return the tables of a file by name."""
    return {name: Table(**entry) for name, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items()}


def train(experiments: Mapping[Path, Sequence[str]], side_by_side: int, until: float) -> list[Path]:
    """Run experiments, so many at once, until all have ended or time is up; return those that have not ended.

    An experiment that fails ends the others, which can be resumed.
    """
    waiting, running, left = dict(experiments), dict[Path, subprocess.Popen[bytes]](), set(experiments)
    try:
        while (waiting or running) and time.monotonic() < until:
            while waiting and len(running) < side_by_side:
                folder, arguments = next(iter(waiting.items()))
                running[folder] = started(folder, arguments)
                del waiting[folder]
            for folder, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[folder]
                if process.returncode:
                    raise SystemExit(f"{folder}: antiphon run failed, see {log_of(folder)}")
                left.discard(folder)
                print(f"{folder}: done", flush=True)
            time.sleep(POLL)
    finally:
        for process in running.values():
            process.send_signal(signal.SIGINT)
        for process in running.values():
            process.wait(TO_STOP)
    return sorted(left)


def log_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def started(folder: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start or resume an experiment."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    resume = ["--resume"] if (folder / "experiment.json").exists() else []
    command = [sys.executable, "-m", "antiphon", "run", *arguments, "--out", str(folder), *resume]
    # Settings name classes of this folder, such as at_scale:AtScale.
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    with log_of(folder).open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": path}
        )


def write_summary(path: Path, name: str, table: Table, folders: Sequence[Path]) -> None:
    """Add a table to the summary, or replace it."""
    runs = [run for folder in folders for run in Trained.load(folder).runs.values()]
    minutes = sum(entry["train_seconds"] for run in runs for entry in run.clock) / 60
    about = {"commit": runs[0].about["commit"], "device": runs[0].about["device"], "seeds": list(table.seeds)}
    row = {
        "page": table.page,
        "result": table.result,
        **about,
        "runs": len(runs),
        "training_minutes": minutes,
    }
    before = json.loads(path.read_text())["tables"] if path.exists() else {}
    command = {
        "benchmark": "tables",
        "command": "python benchmarks/tables.py TABLE...",
        "versions": versions(),
    }
    body = {**command, **about, "tables": {**before, name: row}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1) + "\n")


def show(tables: Mapping[str, Table], results: Path) -> None:
    """Print what each table needs, and what its result says of itself."""
    rows = []
    for name, table in tables.items():
        path = results / table.result
        made = json.loads(path.read_text()) if path.exists() else {}
        at = made.get("commit") or (NONE if not made else "not named")
        rows.append([name, table.page, str(len(table.experiments(Path()))), table.result, at])
    print_table(["table", "page", "experiments", "result", "made at commit"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="TABLE")
    parser.add_argument("--list", action="store_true", help="show all tables, and end")
    parser.add_argument("--data", type=Path, help="the corpus")
    parser.add_argument(
        "--encoder", type=Path, help="the file of the frozen encoder; that of the settings if none"
    )
    parser.add_argument("--out", type=Path, help="the folder for experiments; those in it are resumed")
    parser.add_argument("--jobs", type=int, default=1, help="runs of one experiment at the same time")
    parser.add_argument("--side-by-side", type=int, default=3, help="experiments at the same time")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop after so long, to be resumed"
    )
    parser.add_argument("--tables", type=Path, default=HERE / "tables.yaml", help="a file of tables")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of tables.json")
    options = parser.parse_args(arguments)
    tables = load(options.tables)
    if options.list:
        return show(tables, options.results)
    if unknown := set(options.names) - tables.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(tables)}")
    if not (options.names and options.data and options.out):
        parser.error("name tables, --data and --out")
    until = time.monotonic() + 60 * options.minutes
    encoder = ["--set", f"frontend.path={options.encoder}"] if options.encoder else []
    common = ["--data", str(options.data), *encoder, "--jobs", str(options.jobs), "--device", options.device]
    for name in options.names:
        table, folder = tables[name], options.out / name
        experiments = {path: [*given, *common] for path, given in table.experiments(folder).items()}
        if left := train(experiments, options.side_by_side, until):
            raise SystemExit(f"{name}: time is up, {len(left)} of {len(experiments)} experiments are left")
        subprocess.run(table.measuring(folder, options.data), check=True)
        write_summary(options.results / "tables.json", name, table, list(experiments))


if __name__ == "__main__":
    main()
