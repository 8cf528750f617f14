"""Compressed updates: error feedback, real bytes, the way down, and what cannot be combined with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from elsewhere import remote
from torch import Tensor
from world import CLIENTS, LOCAL, World, assert_same, recording

from antiphon import config
from antiphon.algorithms.compressed import KEPT, PACKED, TABLE, UNSENT, Compressed, PackedAnswer, PackedTask
from antiphon.algorithms.fedavg import FedAvg, fedavg
from antiphon.algorithms.federated_dropout import FederatedDropout
from antiphon.algorithms.personal_layers import PersonalView
from antiphon.algorithms.private import Private
from antiphon.algorithms.pruning import FederatedPruning
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.algorithms.scaffold import Scaffold
from antiphon.clients.states import ClientStates
from antiphon.core import Algorithm, Report, Task, Tensors, Update, size_in_bytes
from antiphon.engine import Rounds
from antiphon.experiment.settings import Run
from antiphon.pools.local import LocalPool, arrived, departing
from antiphon.privacy.distributed_noise import Distributed
from antiphon.privacy.participation import RoundRobin
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.secure_aggregation.secure_pool import SecurePool, in_process
from antiphon.server.run_context import check_order
from antiphon.server.weighting import Uniform
from antiphon.tasks.codec import CODECS, Codec
from antiphon.tasks.codecs.low_rank import LowRank
from antiphon.tasks.codecs.random_projection import RandomProjection
from antiphon.tasks.codecs.stochastic_rounding import StochasticRounding
from antiphon.tasks.codecs.top_k import TopK
from antiphon.tasks.local_training import LocalTraining, part_of
from antiphon.tasks.packing import joined, pack
from antiphon.tasks.submodel import SubmodelView
from antiphon.tasks.update_clipping import AdaptiveUpdate, Clipped, WholeUpdate
from antiphon.tasks.views import through, through_named, views_of

COHORT = list(CLIENTS[:3])
INT8, INT4 = StochasticRounding(bits=8), StochasticRounding(bits=4)
LIKE: Tensors = {"w": torch.zeros(30, 20), "b": torch.zeros(30), "control/w": torch.zeros(30, 20)}


@dataclass
class KeptByClient:
    id: str = "c"
    state: dict[str, Tensor] = field(default_factory=dict)


def update_of(tensors: Tensors, client: str = "c") -> Update:
    return Update(tensors, reports=(Report(client, {}),))


def task_at(round: int) -> Task:
    return Task("train", config={"round": round, "call": 0})


def drawn(seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(tensor.shape, generator=generator) for name, tensor in LIKE.items()}


# --- Error feedback -------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [TopK(0.05), LowRank(2)], ids=repr)
def test_what_was_sent_and_what_is_kept_add_up_to_all_updates(codec: Codec) -> None:
    view, client = PackedAnswer(codec, seed=1), KeptByClient()
    given = {name: torch.zeros_like(tensor) for name, tensor in LIKE.items()}
    sent = {name: torch.zeros_like(tensor) for name, tensor in LIKE.items()}
    for round in range(30):
        update = drawn(round)
        answer, changes = view.after(task_at(round), client, (update_of(update), {"other": torch.ones(1)}))
        assert torch.equal(changes.pop("other"), torch.ones(1))
        client.state |= changes
        arrived = view.decode(answer, task_at(round), LIKE).mean
        for name in LIKE:
            given[name] += update[name]
            sent[name] += arrived[name]
    unsent = part_of(client.state, UNSENT)
    assert unsent.keys() == LIKE.keys()
    for name in LIKE:
        torch.testing.assert_close(sent[name] + unsent[name], given[name], rtol=0.0, atol=1e-4)


def test_an_entry_that_is_never_among_the_largest_is_sent_in_the_end() -> None:
    view, client = PackedAnswer(TopK(share=0.5), seed=1), KeptByClient()
    update = {"w": torch.tensor([1.0, 0.4])}
    seen = []
    for round in range(4):
        answer, changes = view.after(task_at(round), client, (update_of(update), {}))
        client.state |= changes
        seen.append(view.decode(answer, task_at(round), {"w": torch.zeros(2)}).mean["w"].tolist())
    # By hand: memory 0.4, 0.8, then 1.2 is larger than 1; after it, 1 + 1 is.
    assert seen == [[1.0, 0.0], [1.0, 0.0], [0.0, pytest.approx(1.2, abs=1e-3)], [2.0, 0.0]]


@pytest.mark.parametrize("codec", [INT8, RandomProjection(0.5)], ids=repr)
def test_an_unbiased_codec_keeps_nothing(codec: Codec) -> None:
    answer = PackedAnswer(codec, 1).after(task_at(0), KeptByClient(), (update_of(drawn(0)), {}))
    assert answer[1] == {}


def test_what_a_codec_keeps_has_no_name_of_a_parameter() -> None:
    """A smaller model of a later round must not cut it like a parameter."""
    _, changes = PackedAnswer(LowRank(2), 1).after(task_at(0), KeptByClient(), (update_of(drawn(0)), {}))
    assert {name for name in changes if name.startswith(KEPT)} == {"codec.w", "codec.control:w"}
    assert {name for name in changes if not name.startswith(KEPT)} == {f"{UNSENT}/{name}" for name in LIKE}


# --- On the way up --------------------------------------------------------------------------------


def test_one_tensor_of_bytes_travels() -> None:
    view = PackedAnswer(INT8, 1)
    update = drawn(0)
    (answer, _) = view.after(task_at(2), KeptByClient(), (update_of(update), {}))
    assert answer.mean.keys() == {PACKED}
    assert answer.mean[PACKED].dtype == torch.uint8
    arrived = view.decode(answer, task_at(2), LIKE)
    assert list(arrived.mean) == list(LIKE)
    for name, tensor in update.items():
        torch.testing.assert_close(arrived.mean[name], tensor, rtol=0.0, atol=float(tensor.abs().max()) / 127)


def test_chances_depend_on_seed_round_call_and_client() -> None:
    def sent(seed: int, round: int, call: int, client: str) -> bytes:
        task = Task("train", config={"round": round, "call": call})
        answer, _ = PackedAnswer(INT4, seed).after(task, KeptByClient(client), (update_of(drawn(0)), {}))
        return answer.mean[PACKED].numpy().tobytes()

    first = sent(1, 0, 0, "a")
    assert sent(1, 0, 0, "a") == first
    others = [sent(2, 0, 0, "a"), sent(1, 1, 0, "a"), sent(1, 0, 1, "a"), sent(1, 0, 0, "b")]
    assert len({first, *others}) == 5


def test_an_answer_without_tensors_stays_as_it_is() -> None:
    view = PackedAnswer(INT8, 1)
    answer, changes = view.after(task_at(0), KeptByClient(), (update_of({}), {}))
    assert (answer.mean, changes) == ({}, {})
    assert view.decode(answer, task_at(0), {}).mean == {}


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"w": torch.tensor([1.0, float("nan")])}, "NaN or infinity in w"),
        ({"w": torch.tensor([1, 2])}, "'w' has whole numbers, which cannot be compressed"),
    ],
)
def test_what_cannot_be_encoded_is_refused_on_the_client(tensors: Tensors, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PackedAnswer(INT8, 1).after(task_at(0), KeptByClient(), (update_of(tensors), {}))


def failure_of(mean: Tensors) -> str:
    """Why an answer to a compressed task is refused."""
    plain = Task("train", {"w": torch.zeros(50)}, {"round": 0, "call": 0})
    task = departing(through(plain, PackedAnswer(INT8, 1)))
    stats = {"loss": 1.0, "num_utterances": 1}
    update = arrived(task)(Update(mean, reports=(Report("c", stats),)), "c")
    return update.failures[0].reason if update.failures else ""


def bytes_of(tensors: Tensors, codec: Codec = INT8) -> Tensor:
    return pack(codec, tensors, 0)[0]


@pytest.mark.parametrize(
    ("mean", "reason"),
    [
        ({"w": torch.zeros(50)}, "is not compressed as the task asks for"),
        ({}, "is not compressed as the task asks for"),
        ({PACKED: torch.zeros(50)}, "are not at most 59 bytes"),
        ({PACKED: torch.zeros(60, dtype=torch.uint8)}, "are not at most 59 bytes"),
        ({PACKED: bytes_of({"v": torch.randn(50)})}, "other names or shapes"),
        ({PACKED: bytes_of({"w": torch.randn(49)})}, "other names or shapes"),
        ({PACKED: bytes_of({"w": torch.randn(50)}, INT4)}, "not the 54 bytes that the shapes need"),
        ({PACKED: bytes_of({"w": torch.full((50,), float("nan"))}, TopK(1.0))}, "bytes"),
    ],
)
def test_a_wrong_answer_is_a_failure_of_its_client_with_the_reason(mean: Tensors, reason: str) -> None:
    assert reason in failure_of(mean)


def test_a_scale_that_is_not_finite_is_found_after_decoding() -> None:
    values = torch.randn(50)
    data = bytes_of({"w": values}).clone()
    plain = torch.frombuffer(bytearray(b"\0" + data[1:5].numpy().tobytes()), dtype=torch.uint8)
    (steps, codes), _ = INT8.encode(values, 0, None)
    steps[0] = float("inf")
    body = torch.frombuffer(bytearray(joined([(steps, codes)])), dtype=torch.uint8)
    assert failure_of({PACKED: torch.cat([plain, body])}) == "NaN or infinity in w"


def test_work_that_declares_no_answer_cannot_be_compressed() -> None:
    with pytest.raises(ValueError, match="does not know what clients answer to 'train'"):
        PackedAnswer(INT8, 1).decode(update_of({PACKED: torch.zeros(9)}), task_at(0), None)


# --- On the way down ------------------------------------------------------------------------------


def client_with(base: Tensors) -> Any:
    return SimpleNamespace(base=base, runtime=SimpleNamespace(memory={}))


def test_clients_get_rounded_parameters_and_the_server_keeps_the_exact_ones() -> None:
    task = Task("train", drawn(0), {"round": 3, "call": 0})
    view = PackedTask(INT8, 1)
    sent = view.depart(task)
    assert sent.tensors.keys() == {PACKED, TABLE}
    client = client_with({"w": LIKE["w"], "b": LIKE["b"]})
    got, _ = view.before(sent, client)
    assert list(got.tensors) == list(task.tensors)
    for name, tensor in task.tensors.items():
        assert not torch.equal(got.tensors[name], tensor)
        limit = float(tensor.abs().max()) / 127
        torch.testing.assert_close(got.tensors[name], tensor, rtol=0.0, atol=limit)
    assert view.before(sent, client)[0].tensors["w"] is got.tensors["w"]  # decoded once in a process


def test_whole_numbers_and_what_a_view_takes_away_travel_as_they_are() -> None:
    teacher, counts = torch.randn(30, 20), torch.tensor([1, 2])
    task = Task("train", {"w": LIKE["w"], "teacher/w": teacher, "counts": counts})
    sent = PackedTask(INT8, 1).depart(through_named(task, "pseudo_labels", {}))
    assert sent.tensors.keys() == {"teacher/w", "counts", PACKED, TABLE}
    assert sent.tensors["teacher/w"] is teacher


def test_types_come_back_as_they_were() -> None:
    task = Task("train", {"w": torch.ones(30, 20, dtype=torch.bfloat16)})
    view = PackedTask(INT8, 1)
    got, _ = view.before(view.depart(task), client_with({"w": torch.zeros(30, 20)}))
    assert got.tensors["w"].dtype == torch.bfloat16


@pytest.mark.parametrize("base", [{}, {"w": torch.zeros(20, 30)}], ids=["unknown", "another shape"])
def test_a_client_takes_only_tensors_that_are_shaped_like_its_own(base: Tensors) -> None:
    view = PackedTask(INT8, 1)
    sent = view.depart(Task("train", {"w": torch.zeros(30, 20)}))
    with pytest.raises(ValueError, match="the task has 'w', which is not shaped like a parameter here"):
        view.before(sent, client_with(base))


def test_a_task_without_tensors_leaves_as_it_is() -> None:
    assert PackedTask(INT8, 1).depart(task_at(0)) == task_at(0)


def test_differences_from_the_start_arrive_with_a_smaller_error_than_parameters() -> None:
    start, moved = drawn(0), {name: 0.01 * tensor for name, tensor in drawn(1).items()}
    task = Task("train", {name: start[name] + moved[name] for name in ("w", "b")}, {"round": 3, "call": 0})
    client = client_with({name: start[name] for name in ("w", "b")})
    view = PackedTask(INT4, 1, from_start=True)
    sent = view.depart(replace(task, tensors={name: t - start[name] for name, t in task.tensors.items()}))
    got, _ = view.before(sent, client)
    for name, exact in task.tensors.items():
        limit = float(moved[name].abs().max()) / 7  # a step of 4 bits
        torch.testing.assert_close(got.tensors[name], exact, rtol=0.0, atol=1.01 * limit)
    whole = PackedTask(INT4, 1)
    plain, _ = whole.before(whole.depart(task), client)
    assert float((plain.tensors["w"] - task.tensors["w"]).norm()) > 30 * float(
        (got.tensors["w"] - task.tensors["w"]).norm()
    )


# --- The place of the views -----------------------------------------------------------------------


def test_views_that_encode_stay_outside_of_those_that_come_later() -> None:
    packed, clipped, personal = PackedAnswer(INT8, 1), Clipped(WholeUpdate()), PersonalView(("b",))
    task = through(through(through(Task("train"), packed), personal), clipped)
    assert views_of(task) == [personal, clipped, packed]


def test_a_view_that_reshapes_is_outside_even_of_them() -> None:
    packed, small, clipped = PackedAnswer(TopK(), 1), SubmodelView(""), Clipped(WholeUpdate())
    assert views_of(through(through(Task("train"), packed), small)) == [packed, small]
    assert views_of(through(through(Task("train"), clipped), packed)) == [clipped, packed]


# --- In rounds ------------------------------------------------------------------------------------


@dataclass
class Watched:
    """A worker that notes what it got and what it answered."""

    worker: Any
    tasks: list[Task] = field(default_factory=list)
    answers: list[Update] = field(default_factory=list)

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            for update in self.worker.run(task, [client]):
                self.tasks.append(task)
                self.answers.append(update)
                yield update


def run_round(algorithm: Algorithm[Any], world: World, folder: Path, num: int = 1) -> Any:
    watched = Watched(world.worker(world.clients(), states=ClientStates(folder)))
    state = algorithm.init(world.params())
    for _ in range(num):
        watched.tasks, watched.answers = [], []
        pool = recording(LocalPool(watched), COHORT, state.round)
        state, _ = algorithm.round(state, COHORT, pool)
    return state, pool, watched


@pytest.mark.parametrize("up", [INT8, INT4, TopK(), LowRank(2), RandomProjection()], ids=repr)
def test_the_journal_has_the_bytes_that_travel(up: Codec, world: World, tmp_path: Path) -> None:
    _, pool, watched = run_round(Compressed(fedavg(LOCAL), up, INT8), world, tmp_path)
    assert pool.bytes_up == sum(size_in_bytes(answer.mean) for answer in watched.answers)
    assert pool.bytes_down == sum(task.num_bytes for task in watched.tasks)
    assert all(answer.mean.keys() == {PACKED} for answer in watched.answers)
    _, plain, _ = run_round(fedavg(LOCAL), world, tmp_path)
    assert pool.bytes_up < plain.bytes_up
    assert pool.bytes_down < plain.bytes_down / 3
    assert pool.failures == {}


def test_bytes_are_the_same_when_clients_are_elsewhere(world: World, tmp_path: Path) -> None:
    algorithm = Compressed(fedavg(LOCAL), TopK(), INT8)
    here, pool, _ = run_round(algorithm, world, tmp_path / "here")
    worker = world.worker(world.clients(), states=ClientStates(tmp_path / "there"))
    away = recording(remote(worker), COHORT)
    there, _ = algorithm.round(algorithm.init(world.params()), COHORT, away)
    assert (away.bytes_up, away.bytes_down) == (pool.bytes_up, pool.bytes_down)
    assert_same(there, here)


def test_differences_from_the_start_travel_everywhere_alike(world: World, tmp_path: Path) -> None:
    algorithm = Compressed(fedavg(LOCAL), INT8, INT4, from_start=True)
    here, pool, _ = run_round(algorithm, world, tmp_path / "here", num=2)
    assert_same(here.start, world.params())
    _, whole, _ = run_round(Compressed(fedavg(LOCAL), INT8, INT4), world, tmp_path / "whole", num=2)
    assert pool.bytes_down < whole.bytes_down
    exact, _, _ = run_round(fedavg(LOCAL), world, tmp_path / "exact", num=2)
    for name, before in here.start.items():  # the server's own parameters are exact: they hardly differ
        step = float((exact.params[name] - before).norm())
        assert float((here.params[name] - exact.params[name]).norm()) <= 0.1 * step + 1e-9, name
    away = world.worker(world.clients(), states=ClientStates(tmp_path / "there"))
    there = algorithm.init(world.params())
    for _ in range(2):
        there, _ = algorithm.round(there, COHORT, recording(remote(away), COHORT, there.round))
    assert_same(there, here)


def test_eight_bits_change_a_round_little(world: World, tmp_path: Path) -> None:
    exact, _, _ = run_round(fedavg(LOCAL), world, tmp_path)
    rounded, _, _ = run_round(Compressed(fedavg(LOCAL)), world, tmp_path)
    start = world.params()
    for name, before in start.items():
        step = exact.params[name] - before
        gap = rounded.params[name] - exact.params[name]
        assert float(gap.norm()) <= 0.03 * float(step.norm()) + 1e-9, name


def test_scaffold_s_control_variates_are_compressed_and_remembered(world: World, tmp_path: Path) -> None:
    run_round(Compressed(Scaffold(LOCAL, num_clients=8), TopK(0.1)), world, tmp_path, num=2)
    states = ClientStates(tmp_path)
    state = states.read(COHORT[0], (99, 0))
    names = set(world.params())
    assert set(part_of(part_of(state, UNSENT), "control")) == names
    assert set(part_of(state, "control")) == names  # as SCAFFOLD keeps it, not what was sent


def test_the_server_s_own_clients_are_not_compressed(world: World, tmp_path: Path) -> None:
    for algorithm in (
        Rehearsed(Compressed(fedavg(LOCAL), INT4, INT8), LocalTraining(steps=1)),
        Compressed(Rehearsed(fedavg(LOCAL), LocalTraining(steps=1)), INT4, INT8),
    ):
        _, pool, watched = run_round(algorithm, world, tmp_path)
        assert [set(answer.mean) == {PACKED} for answer in watched.answers] == [True, True, True, False]
        assert pool.rows[-1].client == "server/rehearsal"
        assert PACKED not in watched.tasks[-1].tensors


def private_around(inner: Algorithm[Any]) -> Private:
    return Private(
        inner,
        1e4,
        clipping=WholeUpdate(0.01),
        cohorts=RoundRobin(1),
        noise_multiplier=0.1,
        cohort=3.0,
        rounds=8,
        simulated=True,
    )


def test_private_clips_before_compression_and_again_on_arrival(world: World, tmp_path: Path) -> None:
    algorithm = private_around(Compressed(FedAvg(LOCAL, weighting=Uniform()), StochasticRounding(bits=2)))
    _, pool, watched = run_round(algorithm, world, tmp_path)
    assert [type(view) for view in views_of(watched.tasks[0])] == [Clipped, PackedAnswer]
    clipping, view = views_of(watched.tasks[0])
    for answer in watched.answers:
        decoded = view.decode(answer, watched.tasks[0], world.params())
        norm = sum(float(t.double().square().sum()) for t in decoded.mean.values()) ** 0.5
        assert norm > 0.01  # rounding made the clipped update longer
        again = clipping.arrive(decoded)
        assert sum(float(t.double().square().sum()) for t in again.mean.values()) ** 0.5 <= 0.01
    assert all(row.report is not None and row.report.stats["norm"] <= 0.01 for row in pool.rows)


def test_secure_aggregation_sums_what_only_the_way_down_compresses(world: World) -> None:
    worker = world.worker(world.clients())
    pool = SecurePool(in_process(worker, 0.95), LocalPool(worker), SecureAggregation(max_share=0.95), "run")
    algorithm = Compressed(fedavg(LOCAL), up=None, down=INT8)
    begin = algorithm.init(world.params())
    secure, _ = algorithm.round(begin, COHORT, recording(pool, COHORT))
    plain, _ = algorithm.round(begin, COHORT, recording(LocalPool(worker), COHORT))
    assert_same(secure.params, plain.params, tolerance=1e-6)
    with pytest.raises(ValueError, match="cannot be used with PackedAnswer"):
        Compressed(fedavg(LOCAL)).round(begin, COHORT, recording(pool, COHORT))


# --- Settings -------------------------------------------------------------------------------------


def test_codecs_are_chosen_by_name_in_settings() -> None:
    written = {"compressed": {"up": {"top_k": {"share": 0.02}}, "down": "stochastic_rounding"}}
    run = config.from_dict(Run, {"algorithm": written})
    assert run.algorithm == Compressed(FedAvg(), TopK(0.02), StochasticRounding())
    assert config.from_dict(Run, config.to_dict(run)) == run


def test_a_codec_is_not_imported_by_its_path() -> None:
    """It would travel to clients, which import nothing that a network names."""
    with pytest.raises(ValueError, match="unknown choice 'foreign_choices:Codec'"):
        config.from_dict(Run, {"algorithm": {"compressed": {"up": "foreign_choices:Codec"}}})


def install(folder: Path, *lines: str) -> None:
    """Put a distribution with codecs into a folder."""
    metadata = folder / "stranger-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("\n".join(["[antiphon.codecs]", *lines, ""]))


def test_a_codec_of_another_package_is_found_by_its_entry_point(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "packages", "half_floats = extension.half_floats:HalfFloats")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setattr(CODECS, "_registered", dict(CODECS._registered))
    algorithm = config.from_dict(Run, {"algorithm": {"compressed": {"up": "half_floats"}}}).algorithm
    _, pool, watched = run_round(replace(algorithm, inner=fedavg(LOCAL)), world, tmp_path / "states")
    assert pool.failures == {}
    assert 0 < pool.bytes_up <= sum(2 * sum(p.numel() for p in world.params().values()) + 5 for _ in COHORT)
    assert "half_floats" in str(watched.tasks[0].config["views"])


def test_a_wrapper_without_a_codec_is_refused() -> None:
    with pytest.raises(ValueError, match="compressed needs a codec: set up, down or both"):
        Compressed(up=None)


def test_differences_without_a_codec_are_refused() -> None:
    with pytest.raises(ValueError, match="from_start says what `down` encodes: set down too"):
        Compressed(from_start=True)


@pytest.mark.parametrize("outer", [FederatedPruning, FederatedDropout])
def test_differences_of_a_model_that_becomes_smaller_are_refused(outer: Any) -> None:
    Run(outer(Compressed(down=INT8)), rounds=Rounds(total=80))
    with pytest.raises(ValueError, match="from_start needs parameters that keep their shapes"):
        Run(outer(Compressed(down=INT8, from_start=True)), rounds=Rounds(total=80))


@pytest.mark.parametrize("down", [TopK(), LowRank(), RandomProjection()], ids=repr)
def test_a_codec_that_would_lose_most_of_the_model_is_refused(down: Codec) -> None:
    with pytest.raises(ValueError, match=r"would lose most of the model.*Set down=stochastic_rounding"):
        Compressed(down=down)


def test_wrong_orders_are_refused_and_the_right_one_is_named() -> None:
    with pytest.raises(ValueError, match="write federated_pruning around compressed"):
        check_order(Compressed(FederatedPruning()))
    with pytest.raises(ValueError, match="what travels is compressed once"):
        check_order(Compressed(Rehearsed(Compressed())))
    check_order(FederatedPruning(Compressed()))


def test_private_must_be_around_it() -> None:
    private = private_around(FedAvg(LOCAL, weighting=Uniform()))
    with pytest.raises(ValueError, match="write private around compressed, not inside it"):
        private.check_run(Run(Compressed(private)))


def test_secure_aggregation_is_refused_before_the_run() -> None:
    with pytest.raises(ValueError, match=r"sums of encoded updates cannot be decoded: set up=null"):
        Run(Compressed(), secure_aggregation=SecureAggregation())
    assert Run(Compressed(up=None, down=INT8), secure_aggregation=SecureAggregation())


def test_noise_of_clients_is_refused_with_a_codec_on_the_way_down() -> None:
    private = replace(private_around(FedAvg(weighting=Uniform())), noise=Distributed(), simulated=False)
    run = SimpleNamespace(algorithm=private, secure_aggregation=SecureAggregation())
    with pytest.raises(ValueError, match=r"it is not the one with the noise: set down=null"):
        Compressed(up=None, down=INT8).check_run(run)


def test_adaptive_clipping_is_refused() -> None:
    private = replace(private_around(Compressed(FedAvg(weighting=Uniform()))), clipping=AdaptiveUpdate())
    with pytest.raises(ValueError, match="adaptive_update counts the updates that arrive within its bound"):
        Compressed().check_run(SimpleNamespace(algorithm=private, secure_aggregation=None))
