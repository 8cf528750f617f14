"""How processes agree: what one does and all know, and what ends one and so all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import twins
from twins import side_by_side
from world import assert_same

from antiphon.core import ServerState, Stopped
from antiphon.pools.process_group import SingleProcess
from antiphon.pools.torch_group import PeerLost, TorchGroup

STATE = ServerState(
    round=3,
    params={"b": torch.arange(3.0), "a": torch.tensor([[1.5, -0.0]], dtype=torch.float64)},
    opt={"step": 4, "moments": ({"b": torch.ones(3)}, None), "ready": torch.tensor([True, False])},
    seed=2**62 + 1,
)


@pytest.fixture(autouse=True, params=["links", "gloo"])
def carrier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "HAVE_LINKS", request.param == "links")


def test_the_first_process_acts_alone_and_all_get_its_state_to_the_bit(tmp_path: Path) -> None:
    diary = tmp_path / "diary"

    def act() -> ServerState:
        with diary.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return STATE

    def action(group: TorchGroup) -> None:
        blank = ServerState(0, {})
        state = group.on_rank_zero(act, like=blank)
        assert_same(state, STATE)
        assert [tensor.data_ptr() % 64 for tensor in state.params.values()] == [0, 0]  # see in_own_memory
        assert group.is_rank_zero == (group.rank == 0)

    side_by_side(action, size=3)
    assert diary.read_text() == f"{os.getpid()}\n"
    assert_same(SingleProcess().on_rank_zero(act), STATE)


@pytest.mark.parametrize("length", [0, 1, 4000, 4096, 100_000])
def test_messages_of_any_length_arrive_whole(length: int) -> None:
    def action(group: TorchGroup) -> list[Any]:
        return group.all_gather(
            lambda: {"rank": group.rank, "text": "é" * (length if group.rank == 1 else 1)}
        )

    assert side_by_side(action) == [{"rank": 0, "text": "é"}, {"rank": 1, "text": "é" * length}]


def test_numbers_arrive_to_the_last_bit() -> None:
    values = [0.1 + 0.2, 1e-308, -float("inf"), 2**53 + 1]
    assert side_by_side(lambda group: group.all_gather(lambda: values)) == [values, values]


def fail(error: Exception) -> None:
    raise error


def test_what_the_first_process_cannot_do_is_raised_in_all() -> None:
    with pytest.raises(ValueError, match="the disk is full"):
        side_by_side(lambda group: group.on_rank_zero(lambda: fail(ValueError("the disk is full"))))


def test_what_fails_meanwhile_is_raised_in_all_at_the_next_agreement(tmp_path: Path) -> None:
    def action(group: TorchGroup) -> None:
        group.on_rank_zero_async((tmp_path / f"{group.rank}").touch)
        group.all_gather(lambda: None)
        group.on_rank_zero_async(lambda: fail(OSError("the disk is full")))
        where = "" if group.is_rank_zero else "in process 0 of 3: "
        with pytest.raises((OSError, ValueError), match=f"^{where}the disk is full$"):
            group.all_gather(lambda: pytest.fail("it acts after an error") if group.is_rank_zero else None)

    side_by_side(action, size=3)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


@pytest.mark.parametrize("size", [2, 3])
def test_all_processes_get_the_same_sum(size: int) -> None:
    def action(group: TorchGroup) -> list[float]:
        flat = torch.tensor([0.1, 2.0**group.rank], dtype=torch.float64)
        group.all_reduce(flat)
        assert group.all_gather(flat.tolist) == [flat.tolist()] * size
        return flat.tolist()

    assert side_by_side(action, size=size) == pytest.approx([0.1 * size, 2.0**size - 1])


def test_an_error_comes_before_a_stop() -> None:
    def action(group: TorchGroup) -> None:
        group.all_gather(lambda: fail(Stopped("interrupted") if group.rank == 0 else ValueError("no file")))

    with pytest.raises(ValueError, match="in process 1 of 2: no file"):
        side_by_side(action)


def test_all_agree_on_a_stop_and_can_still_do_something_together() -> None:
    def action(group: TorchGroup) -> list[int]:
        with pytest.raises(Stopped, match="interrupted"):
            group.all_gather(lambda: fail(Stopped("interrupted")) if group.rank == 1 else None)
        return group.all_gather(lambda: group.rank)

    assert side_by_side(action, size=3) == [0, 1, 2]


def test_an_error_between_two_agreements_reaches_the_others_at_the_next() -> None:
    def action(group: TorchGroup) -> None:
        with group:
            if group.rank == 1:
                raise ValueError("no such corpus here")
            group.all_gather(lambda: None)

    with pytest.raises(ValueError, match="in process 1 of 3: no such corpus here"):
        side_by_side(action, size=3)


def test_an_error_after_the_last_agreement_reaches_those_who_are_leaving() -> None:
    def action(group: TorchGroup) -> None:
        with group:
            group.all_gather(lambda: None)
            if group.rank == 1:
                raise ValueError("too late")

    with pytest.raises(ValueError, match="in process 1 of 2: too late"):
        side_by_side(action)


def test_the_same_error_everywhere_is_everyone_s_own() -> None:
    def action(group: TorchGroup) -> None:
        with group:
            raise ValueError("a wrong setting")

    with pytest.raises(ValueError, match=r"^a wrong setting$"):
        side_by_side(action, size=3)


def test_a_process_that_ends_without_a_word_is_missed() -> None:
    def action(group: TorchGroup) -> None:
        if group.rank == 1:
            os._exit(9)
        with group:
            group.all_gather(lambda: None)

    with pytest.raises(PeerLost, match="another process of this run is gone"):
        side_by_side(action)
