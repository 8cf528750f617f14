from __future__ import annotations

import os
import random
import resource
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from world import assert_same

from antiphon.algorithms.dga_rl import DgaRl, DgaRlState
from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.pruning import PrunedState
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.algorithms.self_training import SelfTrained, SelfTrainedState
from antiphon.core import ServerState, WrapperState
from antiphon.records import checkpoint
from antiphon.records.checkpoint import CorruptCheckpoint, load, save


@dataclass(frozen=True)
class Memory(ServerState):
    """A state with everything an algorithm may put into one."""

    past: tuple[Any, ...] = ()
    reward: float = 0.0
    name: str | None = None
    done: bool = False


def state() -> Memory:
    shared = torch.arange(3.0)
    return Memory(
        round=3,
        params={"z": torch.randn(2, 3), "a": shared},
        opt={"step": 3, "first": {"z": torch.zeros(0), "a": shared.double()}},
        seed=2**62 + 1,
        past=((1, 0.1), (2, torch.tensor([1, 2])), ()),
        reward=0.1 + 0.2,
        name="softmax",
        done=True,
    )


LIKE = Memory(round=0, params={})


@dataclass(frozen=True)
class Slots:
    """What a server optimiser of somebody else keeps: there is none before the first round."""

    step: int
    velocity: dict[str, torch.Tensor]
    before: Slots | None = None


@pytest.mark.parametrize("length", range(1, 17))
def test_products_with_a_state_that_was_loaded_have_the_bits_of_those_before(
    length: int, tmp_path: Path
) -> None:
    """Whatever the place of a tensor in its file: the length of its name moves it."""
    generator = torch.Generator().manual_seed(length)
    matrix, rows = (torch.randn(size, 16, generator=generator, dtype=torch.float64) for size in (16, 5))
    before = ServerState(1, {"w" * length: matrix})
    save(tmp_path / "c", before, {})
    after, _ = load(tmp_path / "c", ServerState(0, {}))
    assert_same(rows @ after.params["w" * length], rows @ matrix)


def test_a_field_that_was_nothing_at_first_and_a_dataclass_later_comes_back(tmp_path: Path) -> None:
    slots = Slots(2, {"w": torch.ones(2)}, Slots(1, {}))
    save(tmp_path / "c", ServerState(2, {"w": torch.zeros(2)}, slots), {})
    after, _ = load(tmp_path / "c", ServerState(0, {}))
    assert_same(after.opt, slots)


def test_a_field_that_is_nothing_now_and_was_a_dataclass_at_first_comes_back(tmp_path: Path) -> None:
    save(tmp_path / "c", ServerState(2, {}), {})
    after, _ = load(tmp_path / "c", ServerState(0, {}, Slots(0, {})))
    assert after.opt is None


@dataclass(frozen=True)
class Rest:
    """What follows `Slots` in another phase of a run."""

    step: int


def test_a_field_that_held_another_dataclass_at_first_comes_back(tmp_path: Path) -> None:
    save(tmp_path / "c", ServerState(2, {}, Rest(2)), {})
    after, _ = load(tmp_path / "c", ServerState(0, {}, Slots(0, {})))
    assert after.opt == Rest(2)


def test_dataclasses_in_tuples_and_dicts_come_back(tmp_path: Path) -> None:
    save(tmp_path / "c", Memory(1, {}, {"a": Slots(1, {})}, past=(Slots(2, {}), 3)), {})
    after, _ = load(tmp_path / "c", LIKE)
    assert (after.opt, after.past) == ({"a": Slots(1, {})}, (Slots(2, {}), 3))


def test_a_dataclass_that_no_loaded_module_defines_is_named(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Local:
        step: int = 0

    save(tmp_path / "c", ServerState(1, {}, Local()), {})
    with pytest.raises(ValueError, match=r"<locals>\.Local, which no module that is loaded defines"):
        load(tmp_path / "c", ServerState(0, {}))


def test_a_state_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    before = state()
    save(tmp_path / "round-000003", before, {"best": {"round": 2, "wer": 0.3}})
    after, notes = load(tmp_path / "round-000003", LIKE)
    assert_same(after, before)
    assert notes == {"best": {"round": 2, "wer": 0.3}}


def test_dtypes_and_strange_values_survive(tmp_path: Path) -> None:
    values = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1e-45, 3e38])
    params = {
        "half": values.half(),
        "brain": values.bfloat16(),
        "double": values.double(),
        "flag": values > 0,
    }
    params["transposed"] = torch.randn(3, 4).t()
    save(tmp_path / "c", ServerState(1, params), {})
    after, _ = load(tmp_path / "c", ServerState(0, {}))
    assert_same(after.params, params)
    assert torch.equal(torch.signbit(after.params["double"]), torch.signbit(values))


def test_tensors_that_share_memory_are_saved_apart(tmp_path: Path) -> None:
    one = torch.ones(4)
    save(tmp_path / "c", ServerState(1, {"a": one, "b": one, "part": one[:2], "end": one[2:]}), {})
    after, _ = load(tmp_path / "c", ServerState(0, {}))
    assert_same(after.params, {"a": one, "b": one, "part": one[:2], "end": one[2:]})


@pytest.mark.parametrize("value", [[1, 2], {1, 2}, object(), torch.nn.Linear(1, 1), b"x"])
def test_what_cannot_be_saved_is_refused_with_its_place(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match=f"cannot hold a {type(value).__name__} \\(at state/opt/moments\\)"):
        save(tmp_path / "c", ServerState(1, {}, opt={"moments": value}), {})


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "round-000003"
    save(folder, state(), {"best": None})
    chance = random.Random(0)
    for name in ("state.json", "state.safetensors"):
        whole = (folder / name).read_bytes()
        for _ in range(60):
            place, bit = chance.randrange(len(whole)), chance.randrange(8)
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            (folder / name).write_bytes(bytes(damaged))
            with pytest.raises(CorruptCheckpoint, match="round-000003"):
                load(folder, LIKE)
        (folder / name).write_bytes(whole)
    load(folder, LIKE)


def test_a_truncated_file_is_noticed_wherever_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "round-000003"
    save(folder, state(), {})
    for name in ("state.json", "state.safetensors"):
        whole = (folder / name).read_bytes()
        for length in (0, 1, 8, 64, len(whole) // 2, len(whole) - 2):
            (folder / name).write_bytes(whole[:length])
            with pytest.raises(CorruptCheckpoint, match="round-000003 is damaged"):
                load(folder, LIKE)
        (folder / name).write_bytes(whole)


def test_saving_again_replaces(tmp_path: Path) -> None:
    save(tmp_path / "c", ServerState(1, {"w": torch.zeros(1)}), {})
    save(tmp_path / "c", ServerState(2, {"w": torch.ones(1)}), {})
    assert load(tmp_path / "c", LIKE)[0].round == 2
    assert os.listdir(tmp_path) == ["c"]


def test_a_disk_that_is_really_full_is_an_oserror_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: it is safetensors itself that runs into it."""
    save(tmp_path / "round-000001", ServerState(1, {"w": torch.zeros(1)}), {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match=r"round-000002: .*Earlier checkpoints are intact"):
            save(tmp_path / "round-000002", ServerState(2, {"w": torch.zeros(10000)}), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["round-000001"]
    assert load(tmp_path / "round-000001", LIKE)[0].round == 1


def test_half_a_checkpoint_of_a_killed_run_is_not_seen_and_soon_gone(tmp_path: Path) -> None:
    (tmp_path / ".round-000004.writing").mkdir()
    (tmp_path / ".round-000001.removing").mkdir()
    for round in (2, 3):
        save(checkpoint.folder_of(tmp_path, round), ServerState(round, {}), {})
    assert checkpoint.saved_rounds(tmp_path) == [2, 3]
    checkpoint.prune(tmp_path, keep_last=1, keep=set(), newest=3)
    assert os.listdir(tmp_path) == ["round-000003"]


# --- States of wrappers ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Outer(WrapperState):
    """The state of a wrapper."""

    note: float = 0.0
    tensors: Any = field(default_factory=dict)


def nested() -> Outer:
    return Outer(Outer(state(), 0.25, {"w": torch.ones(2)}), 0.5, {"w": torch.zeros(2)})


def test_a_state_inside_a_state_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    before = nested()
    save(tmp_path / "c", before, {})
    after, _ = load(tmp_path / "c", Outer(Outer(LIKE)))
    assert_same(after, before)


def test_fields_of_one_name_in_two_wrappers_are_kept_apart(tmp_path: Path) -> None:
    save(tmp_path / "c", nested(), {})
    after, _ = load(tmp_path / "c", Outer(Outer(LIKE)))
    assert (after.note, after.inner.note) == (0.5, 0.25)


def test_a_damaged_checkpoint_that_was_skipped_does_not_count_as_the_newest(tmp_path: Path) -> None:
    """It would push out the good one."""
    for round in (1, 2, 4, 6):
        save(checkpoint.folder_of(tmp_path, round), ServerState(round, {}), {})
    checkpoint.prune(tmp_path, keep_last=1, keep={1}, newest=4)
    assert checkpoint.saved_rounds(tmp_path) == [1, 4]


@dataclass(frozen=True)
class Renamed(ServerState):
    total: int = 0
    renamed: ClassVar = {"count": "total"}


@dataclass(frozen=True)
class BeforeRenaming(ServerState):
    count: int = 0


def test_a_field_by_the_name_it_once_had_is_read(tmp_path: Path) -> None:
    save(tmp_path / "c", BeforeRenaming(1, {}, count=7), {})
    assert load(tmp_path / "c", Renamed(0, {}))[0].total == 7


def test_a_field_that_an_older_state_did_not_have_has_its_default(tmp_path: Path) -> None:
    save(tmp_path / "c", ServerState(4, {"w": torch.ones(1)}), {})
    after, _ = load(tmp_path / "c", Memory(0, {}))
    assert (after.round, after.reward) == (4, 0.0)


def test_a_key_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """It would come back as text."""
    with pytest.raises(TypeError, match=r"cannot hold the key 3, only text \(at state/opt\)"):
        save(tmp_path / "c", ServerState(1, {}, opt={3: 0.5}), {})


# --- Checkpoints of commit 821f128 and before: a wrapper's state had the inner state's fields among its own


@dataclass(frozen=True)
class FlatSelfTrained(ServerState):
    """As `SelfTrainedState` was: what DGA-RL has learnt was in it, whether there was any or not."""

    learnt: dict[str, Any] = field(default_factory=dict)
    teacher: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class FlatPruned(ServerState):
    """As `PrunedState` was."""

    kept: str = ""
    is_small: bool = False
    sparsity: float = 0.0
    momentum: dict[str, torch.Tensor] = field(default_factory=dict)


PARAMS = {"w": torch.arange(3.0), "b": torch.ones(1)}
OPT = {"step": 4, "first": {"w": torch.full((3,), 0.5), "b": torch.zeros(1)}}
TEACHER = {"w": torch.full((3,), -1.0)}


def read_flat(folder: Path, flat: ServerState, like: Any) -> Any:
    save(folder, flat, {})
    return load(folder, like)[0]


@pytest.mark.parametrize("inner", [FedAvg(), Rehearsed(FedAvg())], ids=["fedavg", "rehearsed"])
def test_a_flat_self_trained_state_is_read_into_the_nested_one(
    tmp_path: Path, inner: FedAvg | Rehearsed
) -> None:
    flat = FlatSelfTrained(4, PARAMS, OPT, 9, {}, TEACHER)
    found = read_flat(tmp_path / "c", flat, SelfTrained(inner).init(PARAMS))
    assert_same(found, SelfTrainedState(ServerState(4, PARAMS, OPT, 9), TEACHER))


def test_what_dga_rl_had_learnt_in_a_flat_state_goes_to_the_inner_state(tmp_path: Path) -> None:
    learnt = {"network": {"0.weight": torch.ones(2, 2)}}
    flat = FlatSelfTrained(4, PARAMS, OPT, 9, learnt, TEACHER)
    found = read_flat(tmp_path / "c", flat, SelfTrained(DgaRl(validation=("valid/a",))).init(PARAMS))
    assert_same(found, SelfTrainedState(DgaRlState(4, PARAMS, OPT, 9, learnt), TEACHER))


@pytest.mark.parametrize("is_small", [False, True])
def test_a_flat_pruned_state_is_read_into_the_nested_one(tmp_path: Path, is_small: bool) -> None:
    flat = FlatPruned(4, PARAMS, OPT, 9, "3:a0", is_small, 0.5, {"w": torch.ones(3)})
    found = read_flat(tmp_path / "c", flat, PrunedState(FedAvg().init(PARAMS)))
    inner = ServerState(4, PARAMS, OPT, 9)
    assert_same(found, PrunedState(inner, "3:a0", is_small, 0.5, {"w": torch.ones(3)}))


def test_a_nested_state_is_not_taken_for_a_flat_one(tmp_path: Path) -> None:
    before = SelfTrainedState(ServerState(4, PARAMS, OPT, 9), TEACHER)
    assert_same(read_flat(tmp_path / "c", before, SelfTrained().init(PARAMS)), before)  # type: ignore[arg-type]


def test_pruning_around_self_training_comes_back(tmp_path: Path) -> None:
    before = PrunedState(SelfTrainedState(ServerState(4, PARAMS, OPT, 9), TEACHER), "3:a0", sparsity=0.25)
    like = PrunedState(SelfTrained().init(PARAMS))
    assert_same(read_flat(tmp_path / "c", before, like), before)  # type: ignore[arg-type]
