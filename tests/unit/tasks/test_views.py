"""Views: what a wrapper does on the client, in which order, and what may come back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from antiphon.clients import worker
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Failure, Report, Task, Tensors, Update
from antiphon.pools.local import LocalPool, arrived
from antiphon.server.weighting import Uniform
from antiphon.tasks.client_work import CLIENT_WORK, Answer, client_work
from antiphon.tasks.views import (
    CLIENT_VIEWS,
    View,
    ViewPool,
    enter,
    through,
    through_named,
    views_of,
)

LOG: list[str] = []


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views and kinds of work that only these tests know."""
    LOG.clear()
    for registry in (CLIENT_VIEWS, CLIENT_WORK):
        list(registry)  # those of the package are imported before the copy is made
        monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    for view in (Noted, Doubled, Reshaping, Careful, Hungry):
        CLIENT_VIEWS.register(view)
    for answers in ("parameters", "everything", "nothing", ""):
        client_work(f"test.{answers or 'anything'}", answers)(lambda task, client: None)


@dataclass(frozen=True)
class Noted(View):
    """Notes what it is asked, and leaves its letter on everything that passes."""

    letter: str = "a"

    def before(self, task: Task, client: Any) -> tuple[Task, Any]:
        LOG.append(f"before {self.letter} of {task.config['seen']}")
        return replace(task, config={**task.config, "seen": f"{task.config['seen']}{self.letter}"}), client

    def after(self, task: Task, client: Any, answer: Answer) -> Answer:
        update, changes = answer
        LOG.append(f"after {self.letter} of {task.config['seen']}")
        return update, {**changes, self.letter: torch.tensor(1.0)}

    def arrive(self, update: Update) -> Update:
        LOG.append(f"arrive {self.letter}")
        return update


@dataclass(frozen=True)
class Doubled(View):
    """Sends twice as much, which is halved on arrival: a compressor the wrong way round."""

    def after(self, task: Task, client: Any, answer: Answer) -> Answer:
        update, changes = answer
        return replace(update, mean={n: torch.cat([t, t]) for n, t in update.mean.items()}), changes

    def arrive(self, update: Update) -> Update:
        return replace(update, mean={n: t[: len(t) // 2] for n, t in update.mean.items()})


@dataclass(frozen=True)
class Reshaping(View):
    effect: ClassVar[str] = "test reshapes"


@dataclass(frozen=True)
class Careful(View):
    refuses: ClassVar = {"test reshapes": "write reshaping outside careful"}


@dataclass(frozen=True)
class Hungry(View):
    """Takes a part of the task's tensors away before the work."""

    consumes: ClassVar[tuple[str, ...]] = ("extra",)


TASK = Task("test.parameters", {"w": torch.zeros(2), "control/w": torch.zeros(2)}, {"seen": ""})


def update_of(tensors: Tensors) -> Update:
    return Update(tensors, reports=(Report("c", {}),))


# --- Order ----------------------------------------------------------------------------------------


def test_the_last_view_is_the_first_to_see_a_task_and_the_last_to_see_the_answer() -> None:
    entered = enter(through(through(TASK, Noted("a")), Noted("b")), None)
    entered.leave(update_of({}))
    assert LOG == ["before b of ", "before a of b", "after a of b", "after b of "]


def test_the_work_sees_the_task_after_all_views() -> None:
    entered = enter(through(through(TASK, Noted("a")), Noted("b")), None)
    assert entered.task.config == {"seen": "ba"}


def test_updates_arrive_through_the_views_in_reverse_order() -> None:
    arrived(through(through(TASK, Noted("a")), Noted("b")))(update_of({"w": torch.ones(2)}), "c")
    assert LOG == ["arrive b", "arrive a"]


def test_changes_of_the_state_pass_through_all_views() -> None:
    entered = enter(through(through(TASK, Noted("a")), Noted("b")), None)
    _, changes = entered.leave((update_of({}), {"work": torch.tensor(0.0)}))
    assert set(changes) == {"work", "a", "b"}


def test_after_gets_the_client_that_before_got() -> None:
    class Client(SimpleNamespace):
        pass

    @dataclass(frozen=True)
    class Exchanging(View):
        def before(self, task: Task, client: Any) -> tuple[Task, Any]:
            return task, Client(name="smaller")

        def after(self, task: Task, client: Any, answer: Answer) -> Answer:
            LOG.append(client.name)
            return answer

    CLIENT_VIEWS.register(Exchanging)
    entered = enter(through(TASK, Exchanging()), Client(name="whole"))
    entered.leave(update_of({}))
    assert (entered.client.name, LOG) == ("smaller", ["whole"])


# --- On the way -----------------------------------------------------------------------------------


def test_a_view_travels_by_its_name_with_its_values() -> None:
    task = through(through(TASK, Noted("x")), Doubled())
    assert task.config["views"] == '[["noted",{"letter":"x"}],["doubled",{}]]'
    assert views_of(task) == [Noted("x"), Doubled()]


def test_a_view_may_be_named_by_who_does_not_have_its_code() -> None:
    assert views_of(through_named(TASK, "noted", {"letter": "z"})) == [Noted("z")]


def test_going_through_a_view_changes_nothing_of_the_task_given() -> None:
    through(TASK, Noted())
    assert TASK.config == {"seen": ""}


def test_a_view_that_a_client_does_not_know_is_refused() -> None:
    task = replace(TASK, config={"views": '[["foreign_choices:View",{}]]'})
    with pytest.raises(ValueError, match="unknown choice 'foreign_choices:View'"):
        enter(task, None)


def test_a_plain_task_goes_through_no_view(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("a view was read")

    monkeypatch.setattr(worker, "enter", never)
    plain = SpeechWorker(SimpleNamespace(), {"a": np.arange(3)}).enter(TASK, "a")  # type: ignore[arg-type]
    assert plain.task is TASK
    assert plain.client.id == "a"
    with pytest.raises(AssertionError, match="a view was read"):
        SpeechWorker(SimpleNamespace(), {"a": np.arange(3)}).enter(through(TASK, Noted()), "a")  # type: ignore[arg-type]


def test_an_update_of_plain_work_leaves_without_changes_of_the_state() -> None:
    update = update_of({"w": torch.ones(2)})
    assert enter(TASK, None).leave(update) == (update, {})


def test_a_view_that_refuses_what_is_nearer_to_the_work_says_what_to_write_instead() -> None:
    with pytest.raises(ValueError, match="careful outside reshaping: write reshaping outside careful"):
        through(through(through(TASK, Reshaping()), Noted()), Careful())


def test_a_view_may_be_nearer_to_the_work_than_one_that_it_refuses() -> None:
    assert views_of(through(through(TASK, Careful()), Reshaping())) == [Careful(), Reshaping()]


# --- What comes back ------------------------------------------------------------------------------


def reason_of(task: Task, tensors: Tensors) -> str:
    """Why an answer is refused; empty if it is not."""
    update = arrived(task)(update_of(tensors), "c")
    if not update.failures:
        return ""
    (failure,) = update.failures
    assert update.is_empty
    assert failure.client == "c"
    return failure.reason


FITTING = {"w": torch.ones(2)}


def test_an_answer_that_fits_arrives() -> None:
    assert reason_of(TASK, FITTING) == ""


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({}, "'w' is missing"),
        ({**FITTING, "b": torch.ones(1)}, "'b' is unknown"),
        ({**FITTING, "control/w": torch.ones(2)}, "'control/w' is unknown"),
        ({"w": torch.ones(3)}, "'w' has shape (3,), not (2,)"),
        ({"w": torch.ones(2, 1)}, "'w' has shape (2, 1), not (2,)"),
        ({"w": torch.ones(2).half()}, "'w' has type torch.float16, not torch.float32"),
    ],
)
def test_an_answer_that_does_not_fit_is_a_failure_that_names_the_tensor(
    tensors: Tensors, reason: str
) -> None:
    assert reason_of(TASK, tensors) == f"its answer does not fit the task: {reason}"


def test_work_that_answers_with_everything_must_answer_with_every_part() -> None:
    task = replace(TASK, kind="test.everything")
    assert reason_of(task, {**FITTING, "control/w": torch.ones(2)}) == ""
    assert "'control/w' is missing" in reason_of(task, FITTING)


def test_a_part_that_a_view_takes_away_is_not_expected_back() -> None:
    task = replace(TASK, kind="test.everything", tensors={**TASK.tensors, "extra/w": torch.zeros(2)})
    answer = {**FITTING, "control/w": torch.ones(2)}
    assert "'extra/w' is missing" in reason_of(task, answer)
    assert reason_of(through(task, Hungry()), answer) == ""


def test_work_that_answers_with_nothing_must_not_send_tensors() -> None:
    task = replace(TASK, kind="test.nothing")
    assert reason_of(task, {}) == ""
    assert "'w' is unknown" in reason_of(task, FITTING)


@pytest.mark.parametrize("kind", ["test.anything", "a kind that is not registered"])
def test_of_work_that_declares_nothing_anything_arrives(kind: str) -> None:
    assert reason_of(replace(TASK, kind=kind), {"other": torch.ones(7)}) == ""


def test_an_answer_is_checked_after_all_views_have_seen_it() -> None:
    assert reason_of(through(TASK, Doubled()), {"w": torch.ones(4)}) == ""
    assert "shape (1,)" in reason_of(through(TASK, Doubled()), FITTING)


def test_the_bytes_of_an_answer_are_those_that_came() -> None:
    update = arrived(through(TASK, Doubled()))(update_of({"w": torch.ones(4)}), "c")
    assert [report.bytes_up for report in update.reports] == [16]


def test_a_failed_client_s_answer_is_left_alone() -> None:
    failed = Update.nothing(Failure("c", "no"))
    assert arrived(through(TASK, Noted()))(failed, "c") is failed
    assert LOG == []


# --- In a pool ------------------------------------------------------------------------------------


class Working:
    """A worker that takes every client through the task's views."""

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            entered = enter(task, client)
            mean = {"w": torch.full((2 if client != "odd" else 3,), 1.0)}
            yield entered.leave(Update(mean, reports=(Report(client, {}),)))[0]


def test_a_pool_sends_every_task_through_its_view_and_folds_what_arrives() -> None:
    pool = ViewPool(LocalPool(Working()), Doubled())
    update = pool.reduce(TASK, ["c", "d"], Uniform())
    assert torch.equal(update.mean["w"], torch.ones(2))
    assert [report.bytes_up for report in update.reports] == [16, 16]


def test_collected_updates_go_through_the_view_too() -> None:
    collected = ViewPool(LocalPool(Working()), Doubled()).collect(TASK, ["c", "d"])
    assert torch.equal(collected.combine([0.0, 0.0]).mean["w"], torch.ones(2))


def test_an_answer_that_does_not_fit_leaves_the_others_in() -> None:
    update = LocalPool(Working()).reduce(TASK, ["c", "odd", "d"], Uniform())
    assert [report.client for report in update.reports] == ["c", "d"]
    assert [failure.client for failure in update.failures] == ["odd"]
