"""What clients keep from round to round: versions, damage, resuming, and names that stay in their folder."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from world import assert_same

from antiphon.clients.client import Unusable
from antiphon.clients.states import ClientStates, LostState
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Report, Task, Update
from antiphon.records.writer import expected_states
from antiphon.tasks.client_work import CLIENT_WORK, Answer, client_work


@pytest.fixture
def states(tmp_path: Path) -> ClientStates:
    return ClientStates(tmp_path / "clients")


def number(value: float) -> dict[str, Tensor]:
    return {"n": torch.tensor([value])}


def read(states: ClientStates, client: str, *moment: int) -> float | None:
    """The one number in the state that a task of this moment reads; None: no state."""
    state = states.read(client, (moment[0], moment[1]))
    return float(state["n"]) if state else None


def files(states: ClientStates) -> list[str]:
    return sorted(str(path.relative_to(states.folder)) for path in states.folder.rglob("*") if path.is_file())


def only_file(states: ClientStates) -> Path:
    (name,) = files(states)
    return states.folder / name


# --- Versions -------------------------------------------------------------------------------------


def test_a_client_without_a_state_reads_nothing(states: ClientStates) -> None:
    assert states.read("c", (5, 0)) == {}


def test_a_task_reads_the_newest_version_before_its_own_moment(states: ClientStates) -> None:
    for moment in ((0, 0), (0, 2), (3, 1)):
        states.write("c", moment, number(10 * moment[0] + moment[1]))
    expected = {(0, 0): None, (0, 1): 0, (0, 3): 2, (2, 9): 2, (3, 1): 2, (3, 2): 31}
    assert {moment: read(states, "c", *moment) for moment in expected} == expected


def test_versions_are_ordered_as_numbers_and_not_as_text(states: ClientStates) -> None:
    for round in (2, 10, 1_000_000, 9_999_999):
        states.write("c", (round, 0), number(round))
    expected = {11: 10, 2_000_000: 1_000_000, 10_000_000: 9_999_999}
    assert {round: read(states, "c", round, 0) for round in expected} == expected


def test_writing_a_version_again_replaces_it(states: ClientStates) -> None:
    states.write("c", (1, 0), number(1))
    states.write("c", (1, 0), number(2))
    assert read(states, "c", 2, 0) == 2
    assert len(files(states)) == 1


def test_a_round_that_is_repeated_reads_what_it_read_the_first_time(states: ClientStates) -> None:
    states.write("c", (0, 0), number(1))
    states.write("c", (1, 0), number(2))
    assert read(states, "c", 1, 0) == 1


def test_clients_do_not_read_each_other_s_states(states: ClientStates) -> None:
    states.write("a", (0, 0), number(1))
    states.write("b", (0, 0), number(2))
    assert [read(states, client, 1, 0) for client in "ab"] == [1, 2]


def test_another_process_finds_what_this_one_wrote(states: ClientStates) -> None:
    states.write("c", (0, 0), number(7))
    assert read(ClientStates(states.folder), "c", 1, 0) == 7


def test_the_size_of_a_state_is_that_of_its_tensors(states: ClientStates) -> None:
    assert states.write("c", (0, 0), {"a": torch.zeros(3, 2), "b": torch.zeros(4, dtype=torch.int64)}) == 56


def test_a_state_comes_back_to_the_last_bit_in_every_dtype(states: ClientStates) -> None:
    values = torch.tensor([0.0, -0.0, torch.inf, 1e-45, 3e38])
    state = {
        "single": values,
        "half": values.half(),
        "brain": values.bfloat16(),
        "double": values.double(),
        "flag": values > 0,
        "count": torch.arange(3),
        "scalar": torch.tensor(0.1),
        "empty": torch.zeros(0, 3),
        "part/of.a.name": torch.randn(3, 4).t(),
    }
    states.write("c", (0, 0), state)
    found = states.read("c", (1, 0))
    assert_same({name: found[name] for name in state}, state)
    assert found.keys() == state.keys()


@pytest.mark.parametrize("length", range(1, 17))
def test_products_with_a_state_that_was_read_have_the_bits_of_those_before(
    states: ClientStates, length: int
) -> None:
    matrix, rows = torch.randn(16, 16, dtype=torch.float64), torch.randn(5, 16, dtype=torch.float64)
    states.write("c", (0, 0), {"w" * length: matrix})
    assert_same(rows @ states.read("c", (1, 0))["w" * length], rows @ matrix)


def test_what_was_written_does_not_change_with_the_tensors(states: ClientStates) -> None:
    shared = torch.zeros(4)
    states.write("c", (0, 0), {"a": shared, "b": shared[:2]})
    shared += 1
    assert_same(states.read("c", (1, 0)), {"a": torch.zeros(4), "b": torch.zeros(2)})


# --- Damage ---------------------------------------------------------------------------------------


def damage(states: ClientStates, kind: str) -> None:
    path = only_file(states)
    whole = path.read_bytes()
    if kind == "missing":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        path.write_bytes(whole[:-3])
    elif kind == "a pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


DAMAGES = ["missing", "empty", "truncated", "a pipe", "flipped byte"]


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_state_that_is_missing_or_damaged_is_named_with_its_place(states: ClientStates, kind: str) -> None:
    states.write("speaker/7", (4, 0), number(1))
    damage(states, kind)
    place = states.folder / "speaker%2F7"
    with pytest.raises(LostState) as lost:
        states.read("speaker/7", (5, 0))
    assert str(place) in str(lost.value)
    assert "missing" in str(lost.value) if kind == "missing" else "is damaged" in str(lost.value)


@pytest.mark.parametrize("kind", DAMAGES)
def test_the_message_about_a_lost_state_says_how_to_start_anew(states: ClientStates, kind: str) -> None:
    states.write("c", (4, 0), number(1))
    damage(states, kind)
    with pytest.raises(LostState, match=r"restore it, or set rounds\.renew_lost_states=true"):
        states.read("c", (5, 0))


def test_the_message_about_a_missing_state_counts_rounds_as_the_journal_does(states: ClientStates) -> None:
    states.write("c", (4, 0), number(1))
    damage(states, "missing")
    with pytest.raises(LostState, match="the state of 'c' from round 5 is missing"):
        states.read("c", (5, 0))


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_lost_state_starts_anew_where_that_is_asked_for(states: ClientStates, kind: str) -> None:
    states.write("c", (4, 0), number(1))
    damage(states, kind)
    states.renew_lost = True
    assert states.read("c", (5, 0)) == {}


def test_a_client_that_started_anew_goes_on_with_its_new_state(states: ClientStates) -> None:
    states.write("c", (4, 0), number(1))
    damage(states, "missing")
    states.renew_lost = True
    states.write("c", (6, 0), number(2))
    assert read(states, "c", 7, 0) == 2


def test_any_flipped_bit_is_noticed(states: ClientStates) -> None:
    states.write("c", (0, 0), {"a": torch.randn(40), "b": torch.arange(5)})
    path, chance = only_file(states), random.Random(0)
    whole = path.read_bytes()
    for _ in range(300):
        place, bit = chance.randrange(len(whole)), chance.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        with pytest.raises(LostState, match="is damaged"):
            states.read("c", (1, 0))


def test_an_older_version_does_not_stand_for_one_that_is_missing(states: ClientStates) -> None:
    states.write("c", (1, 0), number(1))
    states.write("c", (4, 0), number(2))
    (states.folder / "c" / "000004.000000.safetensors").unlink()
    with pytest.raises(LostState, match="from round 5 is missing"):
        states.read("c", (5, 0))


def test_a_state_that_another_process_wrote_is_missed_too(states: ClientStates) -> None:
    states.wrote("c", (4, 0))
    with pytest.raises(LostState, match="from round 5 is missing"):
        states.read("c", (5, 0))


def test_a_state_that_a_later_round_will_write_is_not_missed_yet(states: ClientStates) -> None:
    states.expected = {"c": (4, 0)}
    assert states.read("c", (4, 0)) == {}


@pytest.mark.parametrize(("client", "moment"), [("b", (0, 0)), ("a", (1, 0)), ("a", (0, 1))])
def test_a_copy_of_another_state_is_noticed(
    states: ClientStates, client: str, moment: tuple[int, int]
) -> None:
    states.write("a", (0, 0), number(1))
    original = only_file(states)
    states.write(client, moment, number(2))
    (copy,) = (states.folder / name for name in files(states) if states.folder / name != original)
    shutil.copyfile(original, copy)
    with pytest.raises(LostState, match=r"damaged, or that of another client or round"):
        states.read(client, (5, 0))


def test_a_state_of_an_earlier_antiphon_is_read(states: ClientStates) -> None:
    """It has the checksum of its tensors alone."""
    states.write("a", (3, 1), number(7))
    tensors = {"n": torch.tensor([7.0])}
    old = hashlib.sha256(b'["n", "torch.float32", [1]]' + tensors["n"].numpy().tobytes()).hexdigest()
    save_file(tensors, only_file(states), metadata={"sha256": old})
    assert read(states, "a", 4, 0) == 7


def test_a_damaged_state_of_one_client_does_not_concern_another(states: ClientStates) -> None:
    states.write("c", (0, 0), number(1))
    damage(states, "truncated")
    states.write("d", (0, 0), number(2))
    assert read(states, "d", 1, 0) == 2


# --- Killed while writing -------------------------------------------------------------------------


@pytest.fixture
def killed(states: ClientStates, monkeypatch: pytest.MonkeyPatch) -> ClientStates:
    """A process was killed between the writing of a file and its renaming."""

    def killed(source: Path, target: Path) -> None:
        shutil.copyfile(source, target.with_name(f"{target.name}.7.writing"))  # a kill removes nothing
        raise KeyboardInterrupt

    states.write("c", (0, 0), number(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            states.write("c", (1, 0), number(2))
    assert len(files(states)) == 2
    return ClientStates(states.folder)


def test_half_a_version_of_a_killed_process_is_not_read(killed: ClientStates) -> None:
    assert read(killed, "c", 2, 0) == 1


def test_half_a_version_of_a_killed_process_is_removed_on_resume(killed: ClientStates) -> None:
    killed.rollback(5)
    assert files(killed) == ["c/000000.000000.safetensors"]


def test_a_version_is_written_again_over_half_of_it(killed: ClientStates) -> None:
    killed.write("c", (1, 0), number(3))
    assert read(killed, "c", 2, 0) == 3


def test_everything_that_was_written_is_synced_once(
    states: ClientStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("antiphon.clients.states.sync", synced.append)
    states.write("a", (0, 0), number(1))
    states.write("b", (0, 0), number(1))
    states.sync()
    versions = [states.folder / client / "000000.000000.safetensors" for client in "ab"]
    folders = [states.folder.parent, states.folder, states.folder / "a", states.folder / "b"]
    assert sorted(synced) == sorted([*versions, *folders])
    synced.clear()
    states.sync()
    assert synced == []


# --- Resuming and removing ------------------------------------------------------------------------


def rounds_of(states: ClientStates, client: str = "c") -> list[int]:
    return sorted(int(path.name.split(".")[0]) for path in (states.folder / client).iterdir())


def test_what_came_at_or_after_the_round_of_a_checkpoint_is_removed_on_resume(states: ClientStates) -> None:
    for moment in ((0, 0), (1, 0), (2, 0), (2, 3), (3, 0)):
        states.write("c", moment, number(1))
    states.rollback(2)
    assert rounds_of(states) == [0, 1]


def test_all_states_are_removed_where_a_run_begins_again(states: ClientStates) -> None:
    states.write("c", (0, 0), number(1))
    states.rollback(0)
    assert files(states) == []


def test_a_rollback_can_be_repeated_and_needs_no_folder(states: ClientStates) -> None:
    states.rollback(3)
    states.write("c", (1, 0), number(1))
    states.rollback(3)
    states.rollback(3)
    assert rounds_of(states) == [1]


def test_only_what_a_kept_checkpoint_can_read_is_left(states: ClientStates) -> None:
    for round in (0, 1, 3, 4, 6, 7):
        states.write("c", (round, 0), number(round))
    states.prune([2, 5, 7])  # those read the versions of rounds 1, 4 and 6; 7 is of the round to come
    assert rounds_of(states) == [1, 4, 6, 7]


@pytest.mark.parametrize("round", [2, 5, 7])
def test_a_run_that_resumes_at_a_kept_checkpoint_reads_what_it_read_then(
    states: ClientStates, round: int
) -> None:
    for written in (0, 1, 3, 4, 6):
        states.write("c", (written, 0), number(written))
    before = read(states, "c", round, 0)
    states.prune([2, 5, 7])
    states.rollback(round)
    states.expected = {}
    assert read(states, "c", round, 0) == before


def test_of_two_tasks_in_a_round_the_last_version_is_kept(states: ClientStates) -> None:
    states.write("c", (0, 0), number(1))
    states.write("c", (0, 1), number(2))
    states.prune([1])
    assert files(states) == ["c/000000.000001.safetensors"]


def test_a_client_s_only_version_is_never_removed(states: ClientStates) -> None:
    states.write("c", (0, 0), number(1))
    for round in (1, 50):
        states.prune([round])
    assert read(states, "c", 51, 0) == 1


def test_versions_that_were_left_by_a_killed_run_are_removed_after_it_is_resumed(
    states: ClientStates,
) -> None:
    for round in (0, 1, 2):
        states.write("c", (round, 0), number(round))
    resumed = ClientStates(states.folder)
    resumed.rollback(3)
    resumed.prune([3])
    assert rounds_of(resumed) == [2]


def test_two_processes_may_remove_the_same_versions(states: ClientStates) -> None:
    for round in (0, 1):
        states.write("c", (round, 0), number(round))
    other = ClientStates(states.folder)
    other.rollback(9)
    states.prune([2])
    other.prune([2])
    assert rounds_of(states) == [1]


# --- Folders --------------------------------------------------------------------------------------

NAMES = [
    "speaker/1",
    "speaker/1/2",
    "..",
    ".",
    "../up",
    "/etc/x",
    "a.b",
    "ü/日本",
    "a%2Fb",
    "a b",
    "~",
    "a\\b",
    "名" * 100,
    "speaker/" + "名" * 300,
    "speaker/" + "名" * 300 + "!",  # the same beginning
    "\ud800" * 100,  # half a character, as JSON can have
]


@pytest.mark.parametrize("name", NAMES)
def test_a_client_of_any_name_has_a_folder_inside_that_of_the_run(states: ClientStates, name: str) -> None:
    states.write(name, (0, 0), number(1))
    assert only_file(states).resolve().parent.parent == states.folder.resolve()
    assert [path.name for path in states.folder.parent.iterdir()] == ["clients"]
    assert read(states, name, 1, 0) == 1


def test_no_two_names_share_a_folder(states: ClientStates) -> None:
    for place, name in enumerate(NAMES):
        states.write(name, (0, 0), number(place))
    assert [read(states, name, 1, 0) for name in NAMES] == list(range(len(NAMES)))


@pytest.mark.parametrize("name", NAMES)
def test_old_versions_of_a_client_of_any_name_are_removed_after_a_resume(
    states: ClientStates, name: str
) -> None:
    for round in (0, 1):
        states.write(name, (round, 0), number(round))
    resumed = ClientStates(states.folder)
    resumed.rollback(2)
    resumed.prune([2])
    assert read(resumed, name, 2, 0) == 1
    assert len(files(resumed)) == 1


def test_a_folder_with_a_name_that_was_always_possible_keeps_it(states: ClientStates) -> None:
    for name, folder in {
        "ü.1/2": "%C3%BC%2E1%2F2",
        "名" * 28: "%E5%90%8D" * 28,
        "x" * 255: "x" * 255,
    }.items():
        states.write(name, (0, 0), number(1))
        assert (states.folder / folder).is_dir()


def test_asking_for_states_that_are_not_there_leaves_nothing(states: ClientStates) -> None:
    for client in NAMES:
        states.read(client, (3, 0))
    states.sync()
    states.prune([1, 2])
    assert not states.folder.exists()


# --- What a journal says --------------------------------------------------------------------------


def test_the_journal_says_which_clients_have_a_state_and_from_which_round() -> None:
    entries: list[dict[str, Any]] = [
        {"round": 0},
        {"round": 1, "clients": {"a": {"state_bytes": 4.0}, "b": {"loss": 1.0}}},
        {"round": 2, "clients": {"b": {"state_bytes": 4.0}, "c": {}}},
        {"round": 3, "clients": {"a": {"state_bytes": 8.0}, "b": {"loss": 1.0}}},
    ]
    assert expected_states(entries) == {"a": (2, 0), "b": (1, 0)}


def test_a_state_of_a_later_task_of_the_round_is_what_the_journal_speaks_of(states: ClientStates) -> None:
    states.write("c", (1, 3), number(5))
    resumed = ClientStates(
        states.folder, expected=expected_states([{"round": 2, "clients": {"c": {"state_bytes": 4}}}])
    )
    assert read(resumed, "c", 2, 0) == 5


# --- On the client --------------------------------------------------------------------------------


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work that counts in the client's state how often it was done; "sick…" clients fail after that."""
    list(CLIENT_WORK)
    monkeypatch.setattr(CLIENT_WORK, "_registered", dict(CLIENT_WORK._registered))

    @client_work("test.count")
    def count(task: Task, client: Any) -> Answer:
        past = float(client.state["n"]) if client.state else 0.0
        if client.id.startswith("sick"):
            raise Unusable("it is sick")
        stats = {"past": torch.nan if client.id.startswith("odd") else past}
        changes = {} if task.config.get("forgets") else number(past + 1)
        return Update({}, reports=(Report(client.id, stats),)), changes

    return iter(())


def worker(states: ClientStates | None, *clients: str) -> SpeechWorker:
    runtime: Any = SimpleNamespace(device="cpu")
    return SpeechWorker(runtime, {client: np.arange(1) for client in clients}, states)


def ask(
    states: ClientStates | None, client: str = "c", round: int = 0, call: int = 0, **config: bool
) -> Update:
    task = Task("test.count", {}, {"round": round, "call": call, **config})
    (update,) = worker(states, client).run(task, [client])
    return update


@pytest.mark.usefixtures("counting")
def test_work_reads_what_it_kept_in_earlier_rounds(states: ClientStates) -> None:
    past = [ask(states, round=round).reports[0].stats["past"] for round in (0, 1, 4)]
    assert past == [0, 1, 2]


@pytest.mark.usefixtures("counting")
def test_a_second_task_of_a_round_reads_what_the_first_kept(states: ClientStates) -> None:
    past = [ask(states, call=call).reports[0].stats["past"] for call in (0, 1)]
    assert past == [0, 1]


@pytest.mark.usefixtures("counting")
def test_a_report_says_how_large_the_state_is(states: ClientStates) -> None:
    assert ask(states).reports[0].state_bytes == 4


@pytest.mark.usefixtures("counting")
def test_what_work_does_not_change_is_kept(states: ClientStates) -> None:
    states.write("c", (0, 0), {"n": torch.tensor([3.0]), "other": torch.tensor([9.0])})
    ask(states, round=1)
    assert_same(states.read("c", (2, 0)), {"n": torch.tensor([4.0]), "other": torch.tensor([9.0])})


@pytest.mark.usefixtures("counting")
def test_work_that_keeps_nothing_leaves_nothing(states: ClientStates) -> None:
    assert ask(states, forgets=True).reports[0].state_bytes == 0
    assert not states.folder.exists()


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("client", ["sick", "odd"])
def test_the_state_of_a_client_that_fails_is_untouched(states: ClientStates, client: str) -> None:
    states.write(client, (0, 0), number(1))
    assert ask(states, client, round=1).is_empty
    assert len(files(states)) == 1


@pytest.mark.usefixtures("counting")
def test_a_client_whose_state_is_lost_is_left_out_and_named(states: ClientStates) -> None:
    ask(states)
    damage(states, "truncated")
    (failure,) = ask(states, round=1).failures
    assert failure.client == "c"
    assert "LostState: the client state" in failure.reason


@pytest.mark.usefixtures("counting")
def test_state_without_a_folder_for_it_is_refused() -> None:
    (failure,) = ask(None).failures
    assert "'test.count' keeps state on the client, and this run has no folder for it" in failure.reason


def test_states_whose_answer_was_lost_are_forgotten(tmp_path: Path) -> None:
    """The server expects the state of round 2; the client has stored one in round 3, too."""
    states = ClientStates(tmp_path)
    for round in (1, 2, 3):
        states.write("a", (round, 0), {"w": torch.tensor(float(round))})
    states.write("a", (4, 0), {"w": torch.tensor(4.0)})  # in the present round, for its first task
    states.expected["a"] = (2, 0)
    states.forget_lost("a", round=4)
    assert states.read("a", (4, 0))["w"].item() == 2.0
    assert states.read("a", (4, 1))["w"].item() == 4.0
    states.expected.clear()
    states.forget_lost("a", round=4)
    assert states.read("a", (4, 0)) == {}
