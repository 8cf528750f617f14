"""Who teaches when, and what the state remembers of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from instructions import read_instruction

from antiphon import config
from antiphon.algorithms.fedavg import FedAvg, fedavg
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.algorithms.self_training import (
    CurrentModel,
    FrozenSeed,
    MovingAverage,
    OtherModel,
    SelfTrained,
)
from antiphon.core import Report, Task, Update, Weigh


class Walk:
    """A pool whose clients always send Δ = −1, so that after round t the model is t; it keeps the tasks."""

    def __init__(self) -> None:
        self.tasks: list[tuple[tuple[str, ...], Task]] = []

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        self.tasks.append((tuple(cohort), task))
        own, _ = read_instruction(task)
        delta = {name: -torch.ones_like(tensor) for name, tensor in own.tensors.items()}
        stats = {"loss": 1.0, "num_utterances": 1.0, "num_steps": 1.0}
        return Update(delta, reports=(Report(cohort[0], stats),))

    def collect(self, task: Task, cohort: Sequence[str]):  # type: ignore[no-untyped-def]
        raise NotImplementedError


def teachers(algorithm: SelfTrained, num_rounds: int) -> list[float | None]:
    """The one parameter of the teacher that each round's task brings; None where it brings none."""
    pool, state = Walk(), algorithm.init({"w": torch.zeros(1, dtype=torch.float64)})
    for _ in range(num_rounds):
        state, _ = algorithm.round(state, ["a"], pool)
    found: list[float | None] = []
    for cohort, task in pool.tasks:
        if cohort == ("a",):
            instruction = read_instruction(task)[1]
            assert instruction is not None
            found.append(float(instruction.teacher["w"]) if instruction.teacher else None)
    return found


def test_the_current_model_teaches_as_it_was_at_the_last_change() -> None:
    assert teachers(SelfTrained(fedavg(), teacher=CurrentModel()), 4) == [0, 1, 2, 3]
    assert teachers(SelfTrained(fedavg(), teacher=CurrentModel(update_every=3)), 7) == [0, 0, 0, 3, 3, 3, 6]


def test_the_moving_average_is_the_one_worked_out_by_hand() -> None:
    # m_0 = 0, m_1 = 0.75·0 + 0.25·1, m_2 = 0.75·0.25 + 0.25·2, m_3 = 0.75·0.6875 + 0.25·3
    found = teachers(SelfTrained(fedavg(), teacher=MovingAverage(decay=0.75)), 4)
    assert found == pytest.approx([0.0, 0.25, 0.6875, 1.265625], abs=1e-15)
    # every other round: m_2 = 0.5·0 + 0.5·2, m_4 = 0.5·1 + 0.5·4
    found = teachers(SelfTrained(fedavg(), teacher=MovingAverage(decay=0.5, update_every=2)), 5)
    assert found == pytest.approx([0.0, 0.0, 1.0, 1.0, 2.5], abs=1e-15)


@pytest.mark.parametrize("teacher", [FrozenSeed(), OtherModel("out/large")])
def test_a_teacher_that_never_changes_never_travels(teacher: FrozenSeed | OtherModel) -> None:
    assert teachers(SelfTrained(fedavg(), teacher=teacher), 3) == [None] * 3


def test_the_server_s_own_client_is_not_taught() -> None:
    pool, algorithm = Walk(), SelfTrained(Rehearsed(), teacher=CurrentModel())
    state = algorithm.init({"w": torch.zeros(1)})
    after, metrics = algorithm.round(state, ["a", "b"], pool)
    assert [(cohort, read_instruction(task)[1] is not None) for cohort, task in pool.tasks] == [
        (("a", "b"), True),
        (("server/rehearsal",), False),
    ]
    assert float(after.params["w"]) == 2.0
    assert metrics["rehearsal_loss"] == 1.0
    assert metrics["num_labelled"] == 0.0


def test_only_trained_parameters_of_a_teacher_travel() -> None:
    pool = Walk()
    algorithm = SelfTrained(FedAvg(trainable=("output.*",)), teacher=CurrentModel())
    algorithm.round(algorithm.init({"encoder.w": torch.zeros(2), "output.w": torch.zeros(3)}), ["a"], pool)
    assert pool.tasks[0][1].tensors.keys() == {"output.w", "teacher/output.w"}


def test_the_folder_of_another_model_is_in_the_task() -> None:
    pool, algorithm = Walk(), SelfTrained(fedavg(), teacher=OtherModel("out/large"))
    algorithm.round(algorithm.init({"w": torch.zeros(1)}), ["a"], pool)
    instruction = read_instruction(pool.tasks[0][1])[1]
    assert instruction is not None
    assert instruction.model == "out/large"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["teacher=current_model", "teacher.update_every=0"], "every 1 or more rounds"),
        (["teacher=moving_average", "teacher.decay=1"], "at least 0 and below 1"),
        (["teacher=somebody"], "unknown choice"),
        (["inner=rehearsed", "labels.num_hypotheses=0"], "between 1 and the width"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.override(SelfTrained(), settings)
