"""Personal layers: what travels, what stays, and who is evaluated with what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from textbook import EXACT, ExactClients, assert_near, mean
from world import SEED, World, recording

from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.personal_layers import PersonalLayers
from antiphon.core import Pool, Task, Tensors, Update, Worker
from antiphon.pools.local import LocalPool
from antiphon.scoring.error_rate import character_errors
from antiphon.server.run_context import personal_pool
from antiphon.server.weighting import Uniform
from antiphon.tasks.evaluation import measure
from antiphon.tasks.local_training import as_part, part_of

INNER = FedAvg(EXACT, weighting=Uniform())
ALGORITHM = PersonalLayers(INNER, ("output.*",))
COHORTS = [["s00", "s01"], ["s00", "s02"], ["s01", "s00", "s02"]]


@pytest.fixture
def clients(world: World, tmp_path: Path) -> ExactClients:
    return ExactClients(world, tmp_path / "clients")


def is_personal(name: str) -> bool:
    return name.startswith("output.")


def parted(params: Tensors) -> tuple[Tensors, Tensors]:
    """The base layers and the personal ones."""
    return {n: p for n, p in params.items() if not is_personal(n)}, {
        n: p for n, p in params.items() if is_personal(n)
    }


def test_rounds_are_those_of_the_paper(clients: ExactClients) -> None:
    """Algorithms 1 and 2: clients train both; the server averages the base layers."""
    state = ALGORITHM.init(clients.params).with_seed(SEED)
    base, fresh = parted(clients.params)
    own = dict.fromkeys(clients.names, fresh)
    for number, names in enumerate(COHORTS):
        cohort, answers = [f"speaker/{name}" for name in names], []
        state, _ = clients.round(ALGORITHM, state, cohort)
        for client in cohort:
            model = clients.descend({**base, **own[client]}, client, EXACT, lambda v: dict.fromkeys(v, 0.0))
            trained, own[client] = parted(model)
            answers.append(trained)
            assert_near(part_of(clients.kept(client, number + 1), "personal"), own[client])
        base = mean(answers)
        assert_near(state.params, base)


class Watching:
    """A worker that notes what comes to clients and what leaves them."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.names = worker, list[set[str]]()

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for update in self.worker.run(task, clients):
            self.names += [set(task.tensors), set(update.mean)]
            yield update


def test_personal_layers_never_travel(clients: ExactClients) -> None:
    watching, state = Watching(clients.worker), ALGORITHM.init(clients.params)
    for _ in range(2):
        pool = recording(LocalPool(watching), clients.names[:2], state.round)
        state, _ = ALGORITHM.round(state, clients.names[:2], pool)
        personal_pool(ALGORITHM, pool).reduce(Task("evaluate", state.params), clients.names[:2], Uniform())
    base, _ = parted(clients.params)
    assert set(state.params) == set(base)
    trained = [names for names in watching.names if names]
    assert len(watching.names) == 2 * 2 * (2 + 2)
    assert all(names == set(base) for names in trained)


def test_each_client_has_its_own_layer_and_keeps_it_between_rounds(clients: ExactClients) -> None:
    state, (first, second, third, *_) = ALGORITHM.init(clients.params), clients.names
    state, _ = clients.round(ALGORITHM, state, [first, second])
    kept = clients.kept(first, 1)
    state, _ = clients.round(ALGORITHM, state, [second, third])
    assert sorted(kept) == ["personal/output.bias", "personal/output.weight"]
    for name, tensor in clients.kept(first, 2).items():
        assert torch.equal(tensor, kept[name])
        assert not torch.equal(tensor, clients.kept(second, 2)[name])
        assert not torch.equal(clients.kept(second, 1)[name], clients.kept(second, 2)[name])


def wrong(pool: Pool, params: Tensors, client: str) -> float:
    update = pool.reduce(Task("evaluate", params), [client], Uniform())
    return update.reports[0].stats["characters_wrong"]


def says(letter: int, params: Tensors) -> Tensors:
    """Output layers that say one letter all the time."""
    _, own = parted(params)
    row = torch.eye(len(own["output.bias"]), dtype=torch.float64)[letter]
    return {"output.weight": torch.zeros_like(own["output.weight"]), "output.bias": row}


def test_evaluation_scores_each_client_s_own_model(clients: ExactClients) -> None:
    first, second, third, *_ = clients.names
    base, _ = parted(clients.params)
    own = {first: says(1, clients.params), second: says(2, clients.params)}
    for client, layers in own.items():
        clients.states.write(client, (0, 0), as_part(layers, "personal"))
    through = personal_pool(ALGORITHM, recording(clients.pool, (), round=1))
    for client, layers in own.items():
        assert wrong(through, base, client) == wrong(clients.pool, {**base, **layers}, client)
    assert wrong(through, base, third) == wrong(clients.pool, clients.params, third)
    assert wrong(through, base, first) != wrong(clients.pool, clients.params, first)


def test_the_score_on_utterances_that_clients_do_not_train_on(world: World, tmp_path: Path) -> None:
    """Each client's own model is scored, and on these utterances alone."""
    clients = ExactClients(world, tmp_path / "clients")
    names = clients.names[:2]
    held_out = {name: indices[:1] for name, indices in world.clients().items()}
    worker = world.worker(world.clients(), world.exact_runtime(), clients.states, held_out)
    heard = dict(zip(names, "ab", strict=True))
    for name, letter in heard.items():
        own = says(world.tokens.encode(letter)[0], clients.params)
        clients.states.write(name, (0, 0), as_part(own, "personal"))
    base, _ = parted(clients.params)
    through = personal_pool(ALGORITHM, recording(LocalPool(worker), (), round=1))
    texts = {name: world.store.text(int(indices[0])) for name, indices in held_out.items()}
    errors = [character_errors(texts[name], letter) for name, letter in heard.items()]
    expected = sum(error.total for error in errors) / sum(error.length for error in errors)
    assert measure(through, base, names, held_out=True)["cer"] == pytest.approx(expected)
    assert measure(through, base, names)["cer"] != pytest.approx(expected)


def test_a_client_that_holds_nothing_out_is_named(clients: ExactClients) -> None:
    task = Task("evaluate", clients.params, {"held_out": True})
    update = clients.pool.reduce(task, clients.names[:1], Uniform())
    assert [failure.client for failure in update.failures] == clients.names[:1]
    assert "held out no utterance" in update.failures[0].reason


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (("head.*",), r"layers: no parameter matches 'head\.\*'; names begin with encoder, output"),
        (("output.*", "decoder.*"), r"layers: no parameter matches 'decoder\.\*'"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(
    layers: tuple[str, ...], message: str, clients: ExactClients
) -> None:
    with pytest.raises(ValueError, match=message):
        PersonalLayers(INNER, layers).init(clients.params)
