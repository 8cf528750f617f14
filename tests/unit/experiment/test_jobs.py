"""Runs side by side, as processes of a few lines: who waits for whom, who fails, what is heard of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from antiphon.core import Stopped
from antiphon.experiment import jobs
from antiphon.records.writer import Listener

# A job: writes when it began and when it ended, and between them what its own lines say.
SCRIPT = """
import json, os, sys, time
name = os.environ["ANTIPHON_JOB"]
begun = time.monotonic()
{body}
with open({diary!r}, "a") as file:
    file.write(json.dumps([name, begun, time.monotonic()]) + "\\n")
"""


class Heard(Listener):
    """A listener that remembers."""

    def __init__(self) -> None:
        self.resumed_after: list[int] = []
        self.rounds: list[int] = []
        self.seconds: list[float | None] = []
        self.ends: list[Mapping[str, Any] | None] = []

    def resumed(self, round: int) -> None:
        self.resumed_after.append(round)

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        self.rounds.append(entry["round"])
        self.seconds.append(clock.get("seconds"))

    def ended(self, scores: Mapping[str, Any] | None) -> None:
        self.ends.append(scores)


class Jobs:
    def __init__(self, folder: Path, bodies: dict[str, str]) -> None:
        self.out, self.diary, self.bodies = folder / "out", folder / "diary.jsonl", bodies
        self.heard: dict[str, Heard] = {}

    def start(self, own: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        body = self.bodies.get(own[jobs.JOB], "time.sleep(0.1)")
        script = SCRIPT.format(body=body, diary=str(self.diary))
        return subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, **own},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def listen(self, name: str) -> Heard:
        return self.heard.setdefault(name, Heard())

    def run(self, needs: Mapping[str, list[str]], num_jobs: int) -> dict[str, str]:
        return jobs.run_jobs(needs, num_jobs, self.out, self.listen)

    def times(self) -> dict[str, tuple[float, float]]:
        lines = map(json.loads, self.diary.read_text().splitlines())
        return {name: (begun, ended) for name, begun, ended in lines}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Jobs]:
    monkeypatch.setattr(jobs, "INTERVAL", 0.02)

    def make(**bodies: str) -> Jobs:
        found = Jobs(tmp_path, bodies)
        monkeypatch.setattr(jobs, "started_again", found.start)
        return found

    return make


def test_a_run_waits_for_those_it_needs(made):
    trial = made(seed="time.sleep(0.3)")
    needs = {"student": ["seed", "teacher"], "teacher": ["seed"], "seed": [], "other": []}
    assert trial.run(needs, 4) == {}
    times = trial.times()
    assert times["teacher"][0] > times["seed"][1]
    assert times["student"][0] > times["teacher"][1]
    assert times["other"][0] < times["seed"][1]


def test_what_is_not_among_the_runs_is_not_waited_for(made):
    trial = made()
    assert trial.run({"a": ["seed"]}, 1) == {}
    assert set(trial.times()) == {"a"}


@pytest.mark.parametrize("num_jobs", [1, 3])
def test_no_more_run_at_once_than_allowed(made, num_jobs):
    trial = made()
    names = [f"run{number}" for number in range(6)]
    trial.run({name: [] for name in names}, num_jobs)
    times = trial.times()
    assert sorted(times) == names
    at_once = [sum(b <= begun < e for b, e in times.values()) for begun, _ in times.values()]
    assert max(at_once) <= num_jobs


def test_one_that_fails_takes_those_along_that_need_it(made):
    error = "print('Loading'); print('error: no such folder'); sys.exit(2)"
    trial = made(bad=error, dead="os.kill(os.getpid(), 9)")
    failed = trial.run({"bad": [], "after": ["bad"], "later": ["after"], "good": [], "dead": []}, 2)
    assert failed == {
        "bad": "error: no such folder",
        "after": "it needs bad, which failed",
        "later": "it needs after, which failed",
        "dead": "killed by signal 9",
    }
    assert set(trial.times()) == {"good"}
    assert "Loading" in (trial.out / "bad" / jobs.OUTPUT).read_text()


def test_a_run_that_said_nothing_leaves_no_file(made):
    trial = made(loud="print('hello')")
    trial.run({"quiet": [], "loud": []}, 2)
    assert not (trial.out / "quiet" / jobs.OUTPUT).exists()
    assert (trial.out / "loud" / jobs.OUTPUT).read_text() == "hello\n"


def test_a_listener_gets_the_times_and_the_end_of_its_run(made, tmp_path):
    trial = made(bad="sys.exit(2)")
    folder = trial.out / "good"
    lines = f"""
for name in ("clock", "journal"):
    with open({str(folder)!r} + "/" + name + ".jsonl", "w") as file:
        file.write(json.dumps(dict(round=1, seconds=2.5)) + chr(10))
"""
    trial.bodies["good"] = lines
    jobs.run_jobs({"good": [], "bad": []}, 2, trial.out, trial.listen, lambda name: {"name": name})
    assert trial.heard["good"].seconds == [2.5]
    assert trial.heard["good"].ends == [{"name": "good"}]
    assert trial.heard["bad"].ends == [None]


WRITE = """
path = {path!r}
def write(first, last, how):
    for number in range(first, last + 1):
        with open(path, how) as file:
            file.write(json.dumps(dict(round=number)) + "\\n")
        how = "a"
        time.sleep(0.03)
"""


def test_rounds_are_heard_while_they_are_finished(made, tmp_path):
    journal = tmp_path / "out" / "run" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    body = WRITE.format(path=str(journal)) + "write(0, 5, 'w')\nopen(path, 'a').write('{\"round\": 6')"
    trial = made(run=body)
    trial.run({"run": []}, 1)
    assert trial.heard["run"].rounds == [1, 2, 3, 4, 5]
    assert trial.heard["run"].resumed_after == []


def test_rounds_that_a_fast_process_finishes_before_the_first_look_are_heard(made, tmp_path, monkeypatch):
    journal = tmp_path / "out" / "run" / "journal.jsonl"
    trial = made(run=f"open({str(journal)!r}, 'w').write(json.dumps(dict(round=1)) + chr(10))")

    def start_and_wait(own: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        process = trial.start(own, output)
        process.wait()
        return process

    monkeypatch.setattr(jobs, "started_again", start_and_wait)
    trial.run({"run": []}, 1)
    assert trial.heard["run"].rounds == [1]
    assert trial.heard["run"].resumed_after == []


def test_rounds_that_were_known_are_not_heard_again(made, tmp_path):
    """A run that resumes cuts its journal back to its checkpoint first."""
    journal = tmp_path / "out" / "run" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text("".join(json.dumps({"round": number}) + "\n" for number in range(5)))
    trial = made(
        run="time.sleep(0.2)\n" + WRITE.format(path=str(journal)) + "write(0, 1, 'w'); write(2, 7, 'a')"
    )
    trial.run({"run": []}, 1)
    assert trial.heard["run"].resumed_after == [4]
    assert trial.heard["run"].rounds == [5, 6, 7]


def test_an_interrupt_goes_to_every_job_and_no_other_begins(made, tmp_path):
    wait = "import signal; signal.signal(signal.SIGINT, lambda *_: sys.exit(130))\n"
    wait += "open({!r} + name, 'w').close(); time.sleep(30)"
    trial = made(**{name: wait.format(str(tmp_path / "up-")) for name in ("a", "b")})
    watcher = threading.Thread(target=_interrupt_when_up, args=(tmp_path,))
    watcher.start()
    with pytest.raises(Stopped, match="interrupted"):
        trial.run({"a": [], "b": [], "c": []}, 2)
    watcher.join()
    assert not trial.diary.exists()
    assert "c" not in trial.heard


def _interrupt_when_up(folder: Path) -> None:
    while len(list(folder.glob("up-*"))) < 2:
        threading.Event().wait(0.02)
    os.kill(os.getpid(), signal.SIGINT)
