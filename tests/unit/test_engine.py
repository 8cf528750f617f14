"""The engine on clients made of nothing: what it keeps, what it refuses, and that it goes on exactly."""

from __future__ import annotations

import errno
import json
import os
import pkgutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from world import assert_same

from antiphon import checkpoint
from antiphon.algorithms.fedavg import hierarchical
from antiphon.checkpoint import CorruptCheckpoint, saved_rounds
from antiphon.clients.worker import refuse_nonfinite
from antiphon.core import Failure, Report, Stopped, Task, Update
from antiphon.engine import Engine, Outcome, Rounds, Silent, sample_cohort
from antiphon.pools.local import LocalPool
from antiphon.record import Record
from antiphon.report.journal import read
from antiphon.seeding import derive
from antiphon.server_opt import Adam

CLIENTS = [f"speaker/{name}" for name in "abcdefgh"]
WERS = [0.9, 0.5, 0.4, 0.6, 0.3, 0.7, 0.8, 0.35]  # by round: the best is round 4


class Toy:
    """Answers with a delta that client, round and seed decide; `fault` may do anything before that."""

    def __init__(self, fault: Callable[[int, str], Update | None] = lambda round, client: None) -> None:
        self.fault = fault

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            yield self.fault(int(task.config["round"]), client) or self.answer(task, client)

    def answer(self, task: Task, client: str) -> Update:
        generator = torch.Generator().manual_seed(derive(int(task.config["seed"]), client))
        noise = {name: torch.randn(p.shape, generator=generator) for name, p in task.tensors.items()}
        delta = {name: p + 0.1 * noise[name] for name, p in task.tensors.items()}
        stats = {"loss": 1.0 + float(noise["w"][0]) ** 2, "num_utterances": 3.0, "norm": 1.0, "seconds": 9.0}
        return refuse_nonfinite(Update(delta, reports=(Report(client, stats),)))


class Trial:
    """A run in a folder that can be begun, broken and resumed."""

    def __init__(self, folder: Path, wers: Sequence[float] = WERS, **rounds: int) -> None:
        self.folder, self.wers = folder, wers
        self.rounds = Rounds(**{"total": 6, "cohort": 3, **rounds})

    def run(self, worker: Toy | None = None, resume: bool = False, **options: Any) -> Outcome:
        params = {"w": torch.ones(4), "b": torch.zeros(2)}
        listener = options.pop("listener", None)
        return self.engine(worker or Toy(), listener).run(params, resume, **options)

    def engine(self, worker: Toy, listener: Silent | None = None) -> Engine:
        def validate(pool: object, params: Mapping[str, torch.Tensor]) -> dict[str, float]:
            return {"wer": self.wers[engine.rounds_done], "cer": float(params["w"].sum())}

        engine = Counting(
            hierarchical(server=Adam()),
            LocalPool(worker),
            CLIENTS,
            self.rounds,
            self.folder,
            11,
            validate,
            listener,
        )
        return engine

    @property
    def saved(self) -> list[int]:
        return saved_rounds(self.folder / "checkpoints")

    @property
    def entries(self) -> list[dict[str, Any]]:
        return read(self.folder / "journal.jsonl")

    def files(self, round: int) -> dict[str, bytes]:
        """What must not depend on how often a run was stopped."""
        state = self.folder / "checkpoints" / f"round-{round:06d}" / "state.safetensors"
        return {"journal": (self.folder / "journal.jsonl").read_bytes(), "state": state.read_bytes()}


class Counting(Engine):
    """An engine that knows which round it validates."""

    rounds_done = 0

    def _record(self, entry, state, *more):  # type: ignore[no-untyped-def]
        self.rounds_done = state.round
        super()._record(entry, state, *more)


def test_as_a_round_begins_the_next_cohort_is_expected(tmp_path: Path) -> None:
    expected: list[Sequence[str]] = []
    rounds = Rounds(total=5, cohort=3, valid_every=0)
    engine = Engine(hierarchical(), LocalPool(Toy()), CLIENTS, rounds, tmp_path, 11, expect=expected.append)
    engine.run({"w": torch.ones(4), "b": torch.zeros(2)})
    cohorts = [entry["cohort"] for entry in read(tmp_path / "journal.jsonl")]
    assert expected == cohorts[1:]


class Interrupt(Silent):
    """Ctrl-C after a number of replies."""

    def __init__(self, after: int) -> None:
        self.left = after

    def replied(self, client: str) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path / "run")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    trial = Trial(tmp_path_factory.mktemp("undisturbed"))
    trial.run()
    return trial


# --- Cohorts --------------------------------------------------------------------------------------


def test_a_cohort_is_distinct_clients_of_the_pool() -> None:
    for round in range(50):
        cohort = sample_cohort(CLIENTS, 5, seed=1, round=round)
        assert len(set(cohort)) == 5
        assert set(cohort) <= set(CLIENTS)


def test_a_cohort_larger_than_the_pool_is_the_pool() -> None:
    assert sorted(sample_cohort(CLIENTS, 100, seed=1, round=0)) == CLIENTS


def test_a_cohort_depends_on_seed_and_round_only() -> None:
    cohorts = [sample_cohort(CLIENTS, 4, seed=1, round=r) for r in range(10)]
    assert cohorts == [sample_cohort(CLIENTS, 4, seed=1, round=r) for r in range(10)]
    assert sample_cohort(CLIENTS, 4, seed=1, round=9) == cohorts[9]
    assert cohorts != [sample_cohort(CLIENTS, 4, seed=2, round=r) for r in range(10)]
    assert len({tuple(cohort) for cohort in cohorts}) == 10


def test_all_clients_are_drawn_alike_and_in_any_place() -> None:
    rounds = 4000
    drawn = [sample_cohort(CLIENTS, 3, seed=5, round=r) for r in range(rounds)]
    anywhere = Counter(client for cohort in drawn for client in cohort)
    assert chisquare([anywhere[client] for client in CLIENTS]).pvalue > 0.01
    for place in range(3):
        there = Counter(cohort[place] for cohort in drawn)
        assert chisquare([there[client] for client in CLIENTS]).pvalue > 0.01


def test_pairs_of_clients_meet_alike() -> None:
    drawn = [frozenset(sample_cohort(CLIENTS, 2, seed=8, round=r)) for r in range(4000)]
    pairs = Counter(drawn)
    assert len(pairs) == 28
    assert chisquare(list(pairs.values())).pvalue > 0.01


def test_the_cohorts_of_a_run_are_those_of_its_seed(undisturbed: Trial) -> None:
    cohorts = [entry["cohort"] for entry in undisturbed.entries if entry["round"]]
    assert cohorts == [sample_cohort(CLIENTS, 3, seed=11, round=r) for r in range(6)]


# --- What is kept ---------------------------------------------------------------------------------


def test_a_run_keeps_its_last_checkpoints_and_the_best(undisturbed: Trial) -> None:
    assert undisturbed.saved == [4, 5, 6]


@pytest.mark.parametrize(("keep_last", "kept"), [(1, [4, 6]), (3, [4, 5, 6]), (10, [0, 1, 2, 3, 4, 5, 6])])
def test_keep_last_says_how_many(tmp_path: Path, keep_last: int, kept: list[int]) -> None:
    trial = Trial(tmp_path, keep_last=keep_last)
    trial.run()
    assert trial.saved == kept


def test_the_best_is_saved_whatever_save_every_says(tmp_path: Path) -> None:
    trial = Trial(tmp_path, save_every=5, keep_last=1)
    outcome = trial.run()
    assert trial.saved == [4, 6]
    assert outcome.best_round == 4


def test_the_outcome_is_the_best_round_by_validation(undisturbed: Trial, tmp_path: Path) -> None:
    four = Trial(tmp_path, total=4).run()
    outcome = undisturbed.run(resume=True)
    assert (outcome.best_round, outcome.state.round) == (4, 6)
    assert_same(outcome.best, four.state.params)


def test_of_two_equally_good_rounds_the_earlier_is_the_best(tmp_path: Path) -> None:
    assert Trial(tmp_path, wers=[0.5] * 7).run().best_round == 0


def test_without_validation_the_last_round_is_the_outcome(tmp_path: Path) -> None:
    trial = Trial(tmp_path, valid_every=0)
    assert trial.run().best_round == 6
    assert [entry["round"] for entry in trial.entries] == [1, 2, 3, 4, 5, 6]
    assert not any("valid" in entry for entry in trial.entries)


def test_validation_comes_every_so_many_rounds_and_at_the_end(tmp_path: Path) -> None:
    trial = Trial(tmp_path, valid_every=4)
    trial.run()
    assert [entry["round"] for entry in trial.entries if "valid" in entry] == [0, 4, 6]


def test_journal_and_clock_have_a_line_a_round(undisturbed: Trial) -> None:
    assert [entry["round"] for entry in undisturbed.entries] == list(range(7))
    clock = read(undisturbed.folder / "clock.jsonl")
    assert [line["round"] for line in clock] == list(range(7))
    assert all(line["rss_mib"] > 0 and line["seconds"] >= line["train_seconds"] for line in clock)


def test_a_run_without_resume_begins_anew(trial: Trial, undisturbed: Trial) -> None:
    trial.run(
        Toy(lambda round, client: Update.nothing(Failure(client, "ill")) if client > "speaker/c" else None)
    )
    trial.run()
    assert trial.files(6) == undisturbed.files(6)


# --- Stopping and going on ------------------------------------------------------------------------


@pytest.mark.parametrize("replies", range(1, 18, 2))
def test_ctrl_c_after_any_reply_and_resume_give_the_undisturbed_run(
    trial: Trial, undisturbed: Trial, replies: int
) -> None:
    with pytest.raises(Stopped, match="interrupted"):
        trial.run(listener=Interrupt(after=replies))
    assert trial.saved[-1] == (replies - 1) // 3
    trial.run(resume=True)
    assert trial.files(6) == undisturbed.files(6)


def test_ctrl_c_saves_even_between_two_due_checkpoints(tmp_path: Path, undisturbed: Trial) -> None:
    trial = Trial(tmp_path, save_every=100, wers=[0.1] + [0.9] * 6)
    with pytest.raises(Stopped):
        trial.run(listener=Interrupt(after=11))
    assert trial.saved == [0, 3]
    trial.run(resume=True)
    straight = Trial(tmp_path / "straight", save_every=100, wers=[0.1] + [0.9] * 6)
    straight.run()
    assert trial.files(6) == straight.files(6)


def test_ctrl_c_while_the_last_round_is_saved_is_not_lost(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Record.save

    def interrupted(self: Record, state: Any) -> None:
        save(self, state)
        if state.round == 6:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Record, "save", interrupted)
    with pytest.raises(Stopped, match="interrupted"):
        trial.run()
    monkeypatch.undo()
    assert trial.run(resume=True).state.round == 6


def test_ctrl_c_twice_stops_at_once_and_the_signal_handlers_come_back(trial: Trial) -> None:
    class Twice(Silent):
        def replied(self, client: str) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        trial.run(listener=Twice())
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


class Killed(BaseException):
    """As sudden as a kill: nothing catches it."""


@pytest.mark.parametrize("target", ["Journal.append", "save_file", "replace", "rmtree", "fsync"])
@pytest.mark.parametrize("number", [1, 4, 7])
def test_a_kill_at_any_write_and_resume_give_the_undisturbed_run(
    trial: Trial, undisturbed: Trial, monkeypatch: pytest.MonkeyPatch, target: str, number: int
) -> None:
    """A few kills in one run, before and after the write; subprocesses do it for real in integration/."""
    places = {
        "Journal.append": "antiphon.report.journal.Journal.append",
        "save_file": "antiphon.checkpoint.save_file",
        "replace": "antiphon.checkpoint.os.replace",
        "rmtree": "antiphon.checkpoint.shutil.rmtree",
        "fsync": "antiphon.checkpoint.os.fsync",
    }
    for attempt in range(100):
        with monkeypatch.context() as patch:
            die_at_call(patch, places[target], number, before=attempt % 2 == 0)
            try:
                trial.run(resume=True)
            except Killed:
                number += 2  # further each time, or a run would die at the same place for ever
                continue
        break
    assert attempt > 0
    assert trial.files(6) == undisturbed.files(6)
    assert not list((trial.folder / "checkpoints").glob(".*"))


def die_at_call(patch: pytest.MonkeyPatch, place: str, number: int, before: bool) -> None:
    original = pkgutil.resolve_name(place)
    calls = 0

    def dying(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and before:
            raise Killed
        result = original(*args, **kwargs)
        if calls == number:
            raise Killed
        return result

    patch.setattr(place, dying)


def test_resuming_a_finished_run_changes_nothing(trial: Trial, undisturbed: Trial) -> None:
    trial.run()
    trial.run(resume=True)
    assert trial.files(6) == undisturbed.files(6)


def test_resume_of_a_folder_without_checkpoints_begins_at_the_beginning(
    trial: Trial, undisturbed: Trial
) -> None:
    trial.run(resume=True)
    assert trial.files(6) == undisturbed.files(6)


# --- Damage ---------------------------------------------------------------------------------------


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize("name", ["state.safetensors", "state.json"])
@pytest.mark.parametrize("damage", [flip_a_byte, cut_short, Path.unlink])
def test_a_damaged_checkpoint_is_refused_by_name_and_passed_over_only_when_asked(
    trial: Trial,
    undisturbed: Trial,
    damage: Callable[[Path], None],
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(Stopped):
        trial.run(listener=Interrupt(after=16))
    assert trial.saved == [4, 5]
    damage(trial.folder / "checkpoints" / "round-000005" / name)
    with pytest.raises(CorruptCheckpoint, match=r"round-000005.*--skip-corrupt"):
        trial.run(resume=True)
    trial.run(resume=True, skip_corrupt=True)
    assert "round-000005" in capsys.readouterr().err
    assert trial.files(6) == undisturbed.files(6)


def test_when_no_checkpoint_is_whole_that_is_said(trial: Trial) -> None:
    trial.run()
    for round in trial.saved:
        flip_a_byte(trial.folder / "checkpoints" / f"round-{round:06d}" / "state.json")
    with pytest.raises(CorruptCheckpoint, match=r"no checkpoint in .* is whole"):
        trial.run(resume=True, skip_corrupt=True)


def test_a_journal_that_was_cut_short_is_refused(trial: Trial) -> None:
    with pytest.raises(Stopped):
        trial.run(listener=Interrupt(after=16))
    cut_short(trial.folder / "journal.jsonl")
    with pytest.raises(ValueError, match=r"journal\.jsonl .*it was cut short"):
        trial.run(resume=True)


def test_a_full_disk_is_said_clearly_and_costs_one_round_at_most(
    trial: Trial, undisturbed: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file, calls = checkpoint.save_file, 0

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        nonlocal calls
        calls += 1
        save_file(tensors, path)
        if calls == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match=r"round-000003.*No space left.*earlier ones are intact"):
        trial.run()
    monkeypatch.undo()
    assert sorted(path.name for path in (trial.folder / "checkpoints").iterdir()) == [
        "round-000001",
        "round-000002",
    ]
    trial.run(resume=True)
    assert trial.files(6) == undisturbed.files(6)


# --- Faults of clients ----------------------------------------------------------------------------


def test_too_few_answers_stop_the_run_with_everything_saved(tmp_path: Path, undisturbed: Trial) -> None:
    trial = Trial(tmp_path, min_clients=2)
    ill = Toy(lambda round, client: Update.nothing(Failure(client, "ill")) if round == 3 else None)
    with pytest.raises(Stopped, match=r"0 of 3 clients answered, 2 needed \(speaker/.: ill; "):
        trial.run(ill)
    assert trial.saved[-1] == 3
    assert [entry["round"] for entry in trial.entries] == [0, 1, 2, 3]
    trial.run(resume=True)
    assert trial.files(6) == undisturbed.files(6)


def test_the_round_goes_on_while_enough_answer_and_names_the_others(tmp_path: Path) -> None:
    victims = {round: sample_cohort(CLIENTS, 3, 11, round)[1] for round in range(6)}

    def faulty(round: int, client: str) -> Update | None:
        if client != victims[round]:
            return None
        bad = Update({"w": torch.full((4,), torch.nan), "b": torch.zeros(2)}, reports=(Report(client, {}),))
        return refuse_nonfinite(bad)

    trial = Trial(tmp_path, min_clients=2)
    trial.run(Toy(faulty))
    for entry in trial.entries[1:]:
        victim = victims[entry["round"] - 1]
        assert entry["failures"] == {victim: "NaN or infinity in w"}
        assert list(entry["clients"]) == [client for client in entry["cohort"] if client != victim]
        assert sum(stats["weight"] for stats in entry["clients"].values()) == pytest.approx(1.0)
        assert entry["bytes_down"] == 3 * 24
        assert entry["bytes_up"] == 2 * 24


def test_the_journal_holds_no_figure_that_json_lacks(undisturbed: Trial) -> None:
    for line in (undisturbed.folder / "journal.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} in the journal"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"total": 0}, "must be at least 1"),
        ({"min_clients": 4}, "min_clients 4 is above cohort 3"),
        ({"keep_last": 0}, "keep_last must be at least 1"),
        ({"valid_every": -1}, "valid_every at least 0"),
    ],
)
def test_rounds_that_make_no_sense_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rounds(**{"cohort": 3, **wrong})


def test_more_answers_than_there_are_clients_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="min_clients is 9 but there are 8 clients"):
        Trial(tmp_path, cohort=9, min_clients=9).run()
