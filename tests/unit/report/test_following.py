"""Pages that are written while runs go on."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import antiphon
from antiphon.records.lock import LOCK
from antiphon.report import drawing, following
from antiphon.report.run_folder import RunFolder
from antiphon.report.run_progress import RunProgress, progress_of

REFRESH = '<meta http-equiv="refresh"'


class Clock:
    """Stands in for time.sleep: at each look the next thing happens."""

    def __init__(self, page, *events):
        self.page, self.events, self.pages = page, list(events), []

    def __call__(self, seconds):
        assert seconds >= following.PAUSE
        self.pages.append(self.page.read_text())
        self.events.pop(0)()


@pytest.fixture
def watch(monkeypatch):
    """Return a function that follows a folder while things happen; it returns the pages that were written."""

    def run(path, *events, out=None, examples=0):
        clock = Clock(out or path / "report.html", *events)
        ours = SimpleNamespace(sleep=clock, monotonic=time.monotonic, strftime=time.strftime)
        monkeypatch.setattr(following, "time", ours)  # not time.sleep, which belongs to other threads, too
        messages = []
        antiphon.report(path, out, follow=True, examples=examples, notify=messages.append)
        assert not clock.events
        assert "Ctrl-C" in messages[0]
        run.messages = messages
        return clock.pages

    return run


def write_experiment(folder: Path, *names: str, process: int = 1) -> None:
    """Write what a command leaves that a process has begun, process 1 (which never ends) by default."""
    folder.mkdir(parents=True, exist_ok=True)
    holder = {"pid": process, "host": socket.gethostname(), "started": "", "since": "2026-11-18 03:43:00"}
    (folder / LOCK).write_text(json.dumps({**holder, "command": "antiphon run dga", "token": "1"}))
    runs = {name: {"rounds": {"total": 6}} for name in names}
    body = {"format": "antiphon-experiment/1", "runs": list(names), "config": {"runs": runs}}
    (folder / "experiment.json").write_text(json.dumps(body))


def end(folder: Path) -> None:
    """Do what a command does that ends, or is stopped by Ctrl-C."""
    (folder / LOCK).unlink()


@pytest.fixture
def empty_figures(monkeypatch):
    """Drawing takes longer than all the rest. The first test here draws, and so does `test_report.py`."""
    monkeypatch.setattr(drawing, "_to_svg", lambda figure: "<svg></svg>")


without_figures = pytest.mark.usefixtures("empty_figures")


@pytest.fixture
def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def interrupt():
    raise KeyboardInterrupt


def test_a_folder_is_followed_from_before_its_first_run_to_the_end_of_its_last(make_run, watch, tmp_path):
    out = tmp_path / "out"

    def replace_run(**options):
        shutil.rmtree(out / "dga", ignore_errors=True)
        make_run(out / "dga", planned=6, **options)

    waiting, planned, begun, going_on, scoring = watch(
        out,
        lambda: write_experiment(out, "dga"),
        lambda: replace_run(rounds=0, splits=(), validate_every=0),
        lambda: replace_run(rounds=4, which=("start",)),
        lambda: replace_run(rounds=6, which=("start",)),
        lambda: replace_run(rounds=6),
    )
    assert "Waiting for the first run" in waiting
    assert "dga: 6 rounds" in planned
    for page, done in ((begun, "0 of 6"), (going_on, "4 of 6"), (scoring, "6 of 6")):
        assert REFRESH in page
        assert done in page
    run = RunFolder.load(out / "dga")
    assert f"{run.trained[3]['loss']:.3f}" in going_on
    assert "about" in going_on
    assert ">scoring<" in scoring
    last = (out / "report.html").read_text()
    assert REFRESH not in last
    assert "progress" not in last.partition("<body>")[2]
    assert (out / "RESULTS.md").exists()


def test_the_page_is_only_written_when_something_changed(make_run, watch, tmp_path, monkeypatch):
    folder = make_run(tmp_path / "dga", rounds=2, planned=6, splits=())
    written = []
    monkeypatch.setattr(following, "render", lambda *arguments: written.append(1) or "page")
    watch(folder, lambda: None, lambda: None, interrupt)
    assert len(written) == 1


@without_figures
@pytest.mark.parametrize("examples", [0, 2])
def test_a_page_with_what_was_said_is_its_owner_s_from_the_first_look(make_run, watch, tmp_path, examples):
    folder = make_run(tmp_path / "dga", rounds=2, planned=6, splits=())
    modes = []

    def look():
        modes.append((folder / "report.html").stat().st_mode & 0o077)
        raise KeyboardInterrupt

    watch(folder, look, examples=examples)
    assert (modes == [0]) == (examples > 0)


@without_figures
def test_ctrl_c_leaves_a_page_that_does_not_refresh(make_run, watch, tmp_path):
    folder = make_run(tmp_path / "dga", rounds=2, planned=6, splits=())
    (page,) = watch(folder, interrupt)
    assert REFRESH in page
    assert REFRESH not in (folder / "report.html").read_text()
    assert "is not finished" in (folder / "report.html").read_text()


def test_ctrl_c_before_the_first_run_leaves_nothing(watch, tmp_path):
    watch(tmp_path / "out", interrupt)
    assert not (tmp_path / "out").exists()


@without_figures
def test_following_ends_when_the_command_ends_though_runs_are_not_finished(make_run, watch, tmp_path):
    write_experiment(tmp_path / "out", "dga", "never")
    make_run(tmp_path / "out" / "dga", rounds=2, planned=6, splits=())
    (page,) = watch(tmp_path / "out", lambda: end(tmp_path / "out"))
    assert "never" in page.partition('id="progress"')[2]
    assert watch.messages[1:] == [
        f"{tmp_path / 'out'} is stopped: the command has ended, and not all runs are finished. "
        "To go on, repeat the command with --resume"
    ]


@without_figures
def test_a_stopped_experiment_is_followed_until_it_is_resumed_and_ends(make_run, watch, tmp_path):
    out = tmp_path / "out"
    write_experiment(out, "dga", "later")
    end(out)
    make_run(out / "dga", rounds=2, planned=6, splits=())
    first, second = watch(out, lambda: write_experiment(out, "dga", "later"), lambda: end(out))
    assert ">stopped<" in first
    assert ">stopped<" not in second


@without_figures
@pytest.mark.parametrize("followed", ["out", "out/dga"])
def test_following_ends_when_the_process_of_the_runs_was_killed(
    make_run, watch, tmp_path, dead_process, followed
):
    out, path = tmp_path / "out", tmp_path / followed
    write_experiment(out, "dga")
    make_run(out / "dga", rounds=2, planned=6, splits=())
    (page,) = watch(path, lambda: write_experiment(out, "dga", process=dead_process))
    said = f"{path} is stopped: process {dead_process} has ended, and not all runs are finished. "
    assert watch.messages[1:] == [f"{said}To go on, repeat the command with --resume: antiphon run dga"]
    assert watch(path) == []  # a killed run is not waited for
    assert watch.messages[1:] == [f"{said}To go on, repeat the command with --resume: antiphon run dga"]
    assert ">stopped<" not in page
    last = (path / "report.html").read_text()
    assert "no command is running it. To go on, add <code>--resume</code>" in last


@without_figures
def test_an_experiment_of_another_machine_may_still_run(make_run, watch, tmp_path, dead_process, monkeypatch):
    write_experiment(tmp_path / "out", "dga", process=dead_process)
    make_run(tmp_path / "out" / "dga", rounds=2, planned=6, splits=())
    monkeypatch.setattr("antiphon.records.lock.socket.gethostname", lambda: "elsewhere")
    (page,) = watch(tmp_path / "out", interrupt)
    assert ">stopped<" not in page


@without_figures
def test_finished_runs_are_not_waited_for(make_run, watch, tmp_path):
    assert watch(make_run(tmp_path / "dga")) == []
    assert REFRESH not in (tmp_path / "dga" / "report.html").read_text()


def test_a_page_elsewhere_leaves_the_folder_of_the_runs_alone(watch, tmp_path):
    watch(tmp_path / "out", interrupt, out=tmp_path / "pages" / "watch.html")
    assert list(tmp_path.iterdir()) == []


def test_the_time_left_is_that_of_the_last_rounds(make_run, tmp_path):
    folder = make_run(tmp_path / "dga", rounds=12, planned=20, splits=())
    ticks = [{"round": number, "seconds": 100.0 if number < 3 else 3.0} for number in range(13)]
    (folder / "clock.jsonl").write_text("".join(json.dumps(tick) + "\n" for tick in ticks))
    progress = progress_of(RunFolder.load(folder))
    assert progress.seconds_left == pytest.approx(8 * 3.0)
    assert (progress.num_finished, progress.num_planned, progress.is_finished) == (12, 20, False)


def test_a_run_without_a_round_has_no_figures_yet(make_run, tmp_path):
    folder = make_run(tmp_path / "dga", rounds=0, planned=5, splits=(), validate_every=0)
    assert progress_of(RunFolder.load(folder)) == RunProgress("dga", 0, 5)


@without_figures
def test_a_page_that_waited_may_be_replaced(make_run, watch, tmp_path):
    (page, _) = watch(tmp_path / "dga", lambda: make_run(tmp_path / "other"), interrupt)
    (tmp_path / "other" / "report.html").write_text(page)
    antiphon.report(tmp_path / "other")


def test_names_in_a_waiting_page_are_text(watch, tmp_path):
    out = tmp_path / "<b>out"
    (page, _) = watch(out, lambda: write_experiment(out, "<i>"), interrupt)
    assert "<b>" not in page
