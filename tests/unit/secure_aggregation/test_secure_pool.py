"""Secure sums: right for every pattern of dropouts, closed for a server that asks for more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from antiphon.core import Failure, Report, Task, Tensors, Update, Weigh, Worker
from antiphon.pools.local import LocalPool
from antiphon.secure_aggregation.masks import FixedPoint, add_pair_mask, public_key, self_mask
from antiphon.secure_aggregation.member import STEPS, Member, Message
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.secure_aggregation.secret_sharing import join
from antiphon.secure_aggregation.secure_pool import SecurePool, in_process
from antiphon.server.weighting import ByExamples, SoftmaxLoss, Uniform
from antiphon.tasks.client_work import client_work
from antiphon.tasks.views import CLIENT_VIEWS, View, through


@client_work("test.vector", answers="parameters")
def _vector(task: Task, client: Any) -> Update:
    raise AssertionError("the worker of the test answers")


@client_work("test.report", answers="nothing")
def _report(task: Task, client: Any) -> Update:
    raise AssertionError("the worker of the test answers")


@dataclass
class Vectors:
    """A worker whose clients answer with given vectors."""

    values: Mapping[str, torch.Tensor]
    stats: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            report = Report(client, self.stats.get(client, {}))
            yield Update({"w": self.values[client]} if task.tensors else {}, reports=(report,))


Change = Callable[[str, str, dict[str, Any], Tensors], Message]


@dataclass
class Wire:
    """Members behind a network that may lose clients, and change requests and answers. It keeps them all."""

    members: Mapping[str, Member]
    gone: Mapping[str, str] = field(default_factory=dict)  # client -> the first step that it does not answer
    request: Change = lambda step, client, head, tensors: (head, tensors)
    reply: Change = lambda step, client, head, tensors: (head, tensors)
    seen: dict[tuple[str, str], tuple[Message, Message]] = field(default_factory=dict)

    def __call__(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | str]]:
        for client, (head, tensors) in messages.items():
            step = head["step"]
            if client in self.gone and STEPS.index(step) >= STEPS.index(self.gone[client]):
                yield client, "no answer in 1 s"
                continue
            message = self.request(step, client, head, tensors)
            answer = self.reply(step, client, *self.members[client].answer(*message))
            self.seen[step, client] = message, answer
            yield client, answer


def vectors(num_clients: int, size: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"c{k}": 2 * torch.rand(size, generator=generator, dtype=torch.float64) - 1
        for k in range(num_clients)
    }


def members_of(worker: Worker, clients: Sequence[str], max_share: float = 0.5) -> dict[str, Member]:
    def work_of(client: str) -> Callable[[Task], Update]:
        return lambda task: next(iter(worker.run(task, [client])))

    return {client: Member(client, work_of(client), max_share=max_share) for client in clients}


def task_of(size: int, round: int = 0, kind: str = "test.vector") -> Task:
    return Task(kind, {"w": torch.zeros(size, dtype=torch.float64)}, {"round": round, "call": 0})


def pool_of(wire: Any, worker: Worker, threshold: float = 0.6, **settings: Any) -> SecurePool:
    return SecurePool(wire, LocalPool(worker), SecureAggregation(threshold, **settings), "run")


STATS = {f"c{k}": {"loss": 1 + 0.13 * k, "num_utterances": 3 + k * k} for k in range(9)}


@pytest.mark.parametrize("weigh", [Uniform(), ByExamples(), SoftmaxLoss(1.0), SoftmaxLoss(5.0)])
def test_a_secure_sum_is_the_plain_one_to_the_step_of_the_fixed_point_numbers(weigh: Weigh) -> None:
    worker = Vectors(vectors(9, 500), STATS)
    secure = pool_of(in_process(worker, max_share=0.9), worker)
    plain = LocalPool(worker).reduce(task_of(500), list(worker.values), weigh)
    update = secure.reduce(task_of(500), list(worker.values), weigh)
    top = max(weigh(Report(c, STATS[c])) for c in STATS)
    weights = {c: round((2**31 - 1) * math.exp(weigh(Report(c, STATS[c])) - top)) for c in STATS}
    step = FixedPoint(1.0, weights).step
    assert float((update.mean["w"] - plain.mean["w"]).abs().max()) <= 9 * step
    assert update.log_weight == pytest.approx(plain.log_weight)
    assert [report.client for report in update.reports] == list(worker.values)


def test_two_secure_sums_have_the_same_bits_whatever_the_masks() -> None:
    worker = Vectors(vectors(5, 100), STATS)
    one, two = (
        pool_of(in_process(worker, 0.5), worker).reduce(task_of(100), list(worker.values), Uniform())
        for _ in range(2)
    )
    assert torch.equal(one.mean["w"], two.mean["w"])


def test_every_pattern_of_dropouts_opens_the_right_sum_or_none() -> None:
    """Each of five clients leaves at any of the four steps, or never: 5^5 patterns, three clients needed."""
    worker = Vectors(vectors(5, 8), STATS)
    opened = closed = 0
    for pattern in itertools.product((*STEPS, None), repeat=5):
        gone = {client: step for client, step in zip(worker.values, pattern, strict=True) if step}
        wire = Wire(members_of(worker, list(worker.values), max_share=1.0), gone)
        update = pool_of(wire, worker).reduce(task_of(8), list(worker.values), SoftmaxLoss(1.0))
        # A client that leaves after it has sent its masked update is in the sum.
        inside = [client for client in worker.values if gone.get(client, "reveal") == "reveal"]
        if 5 - len(gone) >= 3:
            plain = LocalPool(worker).reduce(task_of(8), inside, SoftmaxLoss(1.0))
            assert float((update.mean["w"] - plain.mean["w"]).abs().max()) < 1e-8
            assert [report.client for report in update.reports] == inside
            assert {failure.client for failure in update.failures} == set(gone) - set(inside)
            opened += 1
        else:
            assert update.is_empty
            assert {failure.client for failure in update.failures} == set(worker.values)
            closed += 1
    assert (opened, closed) == (1 + 5 * 4 + 10 * 16, 10 * 64 + 5 * 256 + 1024)


# --- A server that asks for too much ----------------------------------------------------------------


def refusals(request: Change, num_clients: int = 5, **options: Any) -> set[str]:
    """Return the reasons for which the members leave, when the server's requests are changed."""
    worker = Vectors(vectors(num_clients, 8), options.pop("stats", {}))
    wire = Wire(members_of(worker, list(worker.values)), request=request, **options)
    update = pool_of(wire, worker).reduce(task_of(8), list(worker.values), ByExamples())
    assert update.is_empty
    return {failure.reason for failure in update.failures}


def at(step: str, /, **changes: Callable[[Any, str], Any]) -> Change:
    """Return a change of some values of the request at one step."""

    def change(name: str, client: str, head: dict[str, Any], tensors: Tensors) -> Message:
        new = {key: function(head[key], client) for key, function in changes.items()} if name == step else {}
        return {**head, **new}, tensors

    return change


EQUAL = {f"c{k}": {"num_utterances": 5.0} for k in range(5)}


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (at("reveal", dropped=lambda dropped, c: ["c0"]), "both shares of 'c0'"),
        (
            at("reveal", survivors=lambda all_, c: [v for v in all_ if v != c], dropped=lambda _, c: [c]),
            "not dropped",
        ),
        (at("reveal", survivors=lambda all_, c: all_[:4]), "not the members of this session"),
        (
            at("reveal", survivors=lambda all_, c: [c], dropped=lambda _, c: sorted({*EQUAL} - {c})),
            "1 survivors, 3",
        ),
        (at("share", threshold=lambda t, c: 2), "a threshold of 2 for 5 clients"),
        (
            at("share", roster=lambda r, c: {**r, c: r["c1" if c == "c0" else "c0"]}),
            "other keys for this client",
        ),
        (
            at("share", roster=lambda r, c: {**r, **{v: r["c0"] for v in r if v not in (c, "c0")}}),
            "not distinct",
        ),
        (at("mask", weights=lambda w, c: {v: w[v] for v in [c, *(set(w) - {c})][:2]}), "2 members, 3 needed"),
        (at("mask", weights=lambda w, c: {v: int(v == "c1") for v in w}), "more than 0.5 of the weight"),
        (at("mask", weights=lambda w, c: dict.fromkeys(w, -1)), "a weight is negative"),
        (at("mask", session=lambda s, c: "another"), "out of turn"),
        (at("mask", step=lambda s, c: "reveal"), "out of turn"),
    ],
)
def test_a_member_refuses_a_request_that_would_unmask_updates(request_: Change, reason: str) -> None:
    reasons = refusals(request_, stats=EQUAL)
    assert any(reason in text for text in reasons), reasons


def test_weights_are_checked_again_when_clients_have_dropped_out() -> None:
    """With c0, c1 has 5 of 13; without it, 5 of 8."""
    stats = {f"c{k}": {"num_utterances": (5.0, 5.0, 1.0, 1.0, 1.0)[k]} for k in range(5)}
    reasons = refusals(lambda step, client, head, tensors: (head, tensors), stats=stats, gone={"c0": "mask"})
    assert any("more than 0.5 of the weight" in reason for reason in reasons)


def test_shares_that_were_changed_are_noticed() -> None:
    def wrong(step: str, client: str, head: dict[str, Any], tensors: Tensors) -> Message:
        if (step, client) != ("reveal", "c1"):
            return head, tensors
        return {**head, "seeds": {**head["seeds"], "c3": "00" * 33}}, tensors

    worker = Vectors(vectors(5, 8), EQUAL)
    wire = Wire(members_of(worker, list(worker.values)), reply=wrong)
    update = pool_of(wire, worker).reduce(task_of(8), list(worker.values), Uniform())
    assert update.is_empty
    assert "'c3' do not match its commitment" in update.failures[0].reason


def test_parcels_that_were_changed_on_their_way_are_refused() -> None:
    def flipped(step: str, client: str, head: dict[str, Any], tensors: Tensors) -> Message:
        return head, {name: tensor ^ 1 for name, tensor in tensors.items()} if step == "mask" else tensors

    assert any("were changed on their way" in reason for reason in refusals(flipped, stats=EQUAL))


# --- One update, one sum ----------------------------------------------------------------------------


def test_an_update_is_summed_once_and_the_same_requests_get_the_same_answers() -> None:
    worker = Vectors(vectors(5, 8), EQUAL)
    members = members_of(worker, list(worker.values))
    clients = list(worker.values)
    first = Wire(members)
    pool_of(first, worker).reduce(task_of(8), clients, Uniform())
    # A server that was stopped before it saved the round asks again, and gets the same bytes.
    again = Wire(members)
    update = pool_of(again, worker).reduce(task_of(8), clients, Uniform())
    assert not update.is_empty
    for key, (_, (head, tensors)) in first.seen.items():
        assert again.seen[key][1][0] == head
        assert all(torch.equal(again.seen[key][1][1][name], tensors[name]) for name in tensors)
    # Another cohort, or another round with the same parameters, would reveal differences.
    for task, cohort in ((task_of(8), clients[:4]), (task_of(8, round=1), clients)):
        update = pool_of(Wire(members), worker).reduce(task, cohort, Uniform())
        assert update.is_empty
        assert all("was summed before" in failure.reason for failure in update.failures)


def test_a_session_that_ended_before_the_reveal_can_begin_again_with_new_keys() -> None:
    worker = Vectors(vectors(5, 8), EQUAL)
    members = members_of(worker, list(worker.values))
    first = Wire(members, gone=dict.fromkeys(worker.values, "reveal"))
    assert pool_of(first, worker).reduce(task_of(8), list(worker.values), Uniform()).is_empty
    second = Wire(members, gone={"c4": "work"})
    update = pool_of(second, worker).reduce(task_of(8), list(worker.values), Uniform())
    assert [report.client for report in update.reports] == ["c0", "c1", "c2", "c3"]
    masked = [wire.seen["mask", "c0"][1][1]["masked"] for wire in (first, second)]
    assert (masked[0] != masked[1]).all()
    # The session of before stays closed.
    late = members["c0"].answer(*first.seen["mask", "c0"][0])
    assert "error" in late[0]


def test_a_request_that_is_sent_again_gets_the_same_answer() -> None:
    """An answer may be lost on its way: the server asks again, and the session goes on."""
    worker = Vectors(vectors(5, 8), EQUAL)
    members = members_of(worker, list(worker.values))
    wire = Wire(members)

    def twice(messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | str]]:
        if next(iter(messages.values()))[0]["step"] != "work":
            list(wire(messages))
        yield from wire(messages)

    update = pool_of(twice, worker).reduce(task_of(8), list(worker.values), Uniform())
    plain = LocalPool(worker).reduce(task_of(8), list(worker.values), Uniform())
    assert float((update.mean["w"] - plain.mean["w"]).abs().max()) < 1e-8


def test_a_second_reveal_in_a_session_is_refused() -> None:
    worker = Vectors(vectors(5, 8), EQUAL)
    wire = Wire(members_of(worker, list(worker.values)))
    pool_of(wire, worker).reduce(task_of(8), list(worker.values), Uniform())
    (head, tensors), _ = wire.seen["reveal", "c0"]
    other = {**head, "survivors": head["survivors"][:4], "dropped": ["c4"]}
    assert "was summed before" in wire.members["c0"].answer(other, tensors)[0]["error"]


# --- What the server sees ---------------------------------------------------------------------------


def chi_square(words: np.ndarray) -> float:
    """Chi-square of the bytes against uniform ones, in standard deviations (255 degrees of freedom)."""
    counts, mean = np.bincount(words.view(np.uint8), minlength=256), words.nbytes / 256
    return float((((counts - mean) ** 2 / mean).sum() - 255) / math.sqrt(2 * 255))


def masked_vector(wire: Wire, client: str) -> np.ndarray:
    return wire.seen["mask", client][1][1]["masked"].numpy().view(np.uint32).copy()


def test_a_masked_update_is_uniform_whatever_is_in_it() -> None:
    size, others = 100_000, vectors(5, 100_000, seed=1)
    seen = {}
    for name, mine in {"zeros": torch.zeros(size), "ones": torch.ones(size), "random": others["c4"]}.items():
        worker = Vectors({**others, "c0": mine.double()}, EQUAL)
        wire = Wire(members_of(worker, list(worker.values)), gone={"c4": "mask"})
        assert not pool_of(wire, worker).reduce(task_of(size), list(worker.values), Uniform()).is_empty
        seen[name] = masked_vector(wire, "c0")
        assert abs(chi_square(seen[name])) < 5
    correlation = np.corrcoef(seen["random"].astype(float), others["c4"].numpy())[0, 1]
    assert abs(correlation) < 5 / math.sqrt(size)
    assert max(int((a == b).sum()) for a, b in itertools.combinations(seen.values(), 2)) <= 2
    weights = dict.fromkeys(others, 1)
    assert chi_square(FixedPoint(1.0, weights).encode(others["c4"].numpy(), "c4")) > 1000  # without a mask


def test_what_is_opened_after_the_sum_leaves_every_survivor_masked() -> None:
    size = 100_000
    worker = Vectors(vectors(5, size), EQUAL)
    wire = Wire(members_of(worker, list(worker.values)))
    pool_of(wire, worker).reduce(task_of(size), list(worker.values), Uniform())
    shares = {k + 1: bytes.fromhex(wire.seen["reveal", f"c{k}"][1][0]["seeds"]["c0"]) for k in range(3)}
    vector = masked_vector(wire, "c0") - self_mask(join(shares), "run/0/0", size)
    assert abs(chi_square(vector)) < 5  # pairwise masks are still on it


def test_a_masked_update_that_arrives_too_late_stays_masked() -> None:
    """Its key was opened, because it was thought to have dropped out; its own mask was not."""
    size, late = 100_000, {}
    worker = Vectors(vectors(5, size), EQUAL)

    def hold_back(step: str, client: str, head: dict[str, Any], tensors: Tensors) -> Message:
        if (step, client) != ("mask", "c4"):
            return head, tensors
        late["vector"] = tensors["masked"].numpy().view(np.uint32).copy()
        return {"error": "too late"}, {}

    wire = Wire(members_of(worker, list(worker.values)), reply=hold_back)
    pool_of(wire, worker).reduce(task_of(size), list(worker.values), Uniform())
    answers = [wire.seen["reveal", f"c{k}"][1][0] for k in range(4)]
    assert all(set(answer["keys"]) == {"c4"} and "c4" not in answer["seeds"] for answer in answers)
    key = join({k + 1: bytes.fromhex(answers[k]["keys"]["c4"]) for k in range(3)})
    roster = wire.seen["share", "c0"][0][0]["roster"]
    opened = X25519PrivateKey.from_private_bytes(key)
    assert public_key(opened) == roster["c4"][0]
    total = np.zeros(size, dtype=np.uint32)
    for k in range(4):
        add_pair_mask(total, opened, "c4", f"c{k}", roster[f"c{k}"][0], "run/0/0")
    assert abs(chi_square(late["vector"] - total)) < 5


# --- What cannot be summed --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1.0001, math.nan, math.inf])
def test_a_client_out_of_range_is_left_out_by_name(value: float) -> None:
    worker = Vectors(vectors(5, 8), EQUAL)
    worker.values["c2"][3] = value
    update = pool_of(in_process(worker, 0.5), worker).reduce(task_of(8), list(worker.values), Uniform())
    assert [failure.client for failure in update.failures] == ["c2"]
    assert "not finite or above 1" in update.failures[0].reason
    plain = LocalPool(worker).reduce(task_of(8), ["c0", "c1", "c3", "c4"], Uniform())
    assert float((update.mean["w"] - plain.mean["w"]).abs().max()) < 1e-8


def test_reports_alone_are_summed_for_any_number_of_clients() -> None:
    worker = Vectors(vectors(2, 8), EQUAL)
    task = Task("test.report", {}, {"round": 0, "call": 0})
    update = pool_of(in_process(worker, 0.5), worker).reduce(task, ["c0", "c1"], Uniform())
    assert [report.client for report in update.reports] == ["c0", "c1"]
    assert update.mean == {}


def test_clients_that_live_with_the_server_are_not_masked() -> None:
    worker = Vectors({**vectors(4, 8), "server/rehearsal": torch.ones(8, dtype=torch.float64)}, EQUAL)
    pool = pool_of(in_process(worker, 0.5), worker)
    update = pool.reduce(task_of(8), ["server/rehearsal"], Uniform())
    assert torch.equal(update.mean["w"], torch.ones(8, dtype=torch.float64))
    assert pool.collect(task_of(8), ["server/rehearsal"]).reports[0].client == "server/rehearsal"


def test_collecting_two_clients_and_unknown_answers_are_refused_with_the_reason() -> None:
    worker = Vectors(vectors(5, 8), EQUAL)
    pool = pool_of(in_process(worker, 0.5), worker)
    with pytest.raises(ValueError, match=r"several weightings .* reveal single ones"):
        pool.collect(task_of(8), ["c0", "c1", "c2"])
    assert (
        "2 clients left at start, 3 needed"
        in pool.reduce(task_of(8), ["c0", "c1"], Uniform()).failures[0].reason
    )
    with pytest.raises(ValueError, match="does not know what clients answer to 'mystery'"):
        pool.reduce(task_of(8, kind="mystery"), ["c0", "c1", "c2"], Uniform())


@CLIENT_VIEWS.register
@dataclass(frozen=True)
class DoubledOnArrival(View):
    """A view that changes single updates on the server."""

    def arrive(self, update: Update) -> Update:
        return update


def test_a_view_that_changes_single_updates_on_the_server_is_refused() -> None:
    worker = Vectors(vectors(5, 8), EQUAL)
    with pytest.raises(ValueError, match="DoubledOnArrival: the server would have to change single updates"):
        pool_of(in_process(worker, 0.5), worker).reduce(
            through(task_of(8), DoubledOnArrival()), ["c0", "c1", "c2"], Uniform()
        )


@pytest.mark.parametrize(
    "settings", [{"threshold": 0.5}, {"threshold": 1.1}, {"bound": 0.0}, {"max_share": 0.0}]
)
def test_settings_that_protect_nobody_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"secure_aggregation.{next(iter(settings))}"):
        SecureAggregation(**settings)


@pytest.mark.parametrize(("cohort", "num_processes"), [(2, 1), (5, 2)])
def test_a_run_whose_sums_could_never_be_opened_is_refused(cohort: int, num_processes: int) -> None:
    SecureAggregation().check(cohort=3, num_processes=1)
    with pytest.raises(ValueError, match=r"rounds\.cohort is 2|leave out --workers"):
        SecureAggregation().check(cohort, num_processes)


def test_a_failing_client_is_named_with_its_own_reason() -> None:
    class Failing(Vectors):
        def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
            for client in clients:
                if client == "c1":
                    yield Update.nothing(Failure(client, "no usable utterance among 0"))
                else:
                    yield from super().run(task, [client])

    worker = Failing(vectors(5, 8), EQUAL)
    update = pool_of(in_process(worker, 0.5), worker).reduce(task_of(8), list(worker.values), Uniform())
    assert update.failures == (Failure("c1", "no usable utterance among 0 (secure aggregation, step work)"),)
