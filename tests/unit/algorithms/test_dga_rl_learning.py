"""DGA-RL over many rounds: in the engine, and what it learns of clients known to be good and bad."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from garden import ALGORITHM, BAD, CLIENTS, LOUD, QUIET, VALID, Garden, begin, params, watch
from safetensors.torch import load_file
from world import assert_same

from antiphon.algorithms.dga_rl import DgaRl, DgaRlState
from antiphon.algorithms.fedavg import dga
from antiphon.core import Stopped, Tensors
from antiphon.engine import Engine, Listener, Outcome, Rounds, sample_cohort
from antiphon.pools.local import LocalPool
from antiphon.pools.recording import RecordingPool
from antiphon.records.journal import read
from antiphon.server.optimizers import Adam
from antiphon.server.run_context import RunContext
from antiphon.tasks.evaluation import measure

# --- In the engine --------------------------------------------------------------------------------


class Halt(Listener):
    """Stops a run when a round has been recorded."""

    def __init__(self, after: int) -> None:
        self.after = after

    def finished(self, entry, clock) -> None:  # type: ignore[no-untyped-def]
        if entry["round"] == self.after:
            raise Stopped("enough")


def run(folder: Path, resume: bool = False, stop_after: int = -1) -> Outcome:
    def validate(pool: RecordingPool, model: Tensors) -> dict[str, float]:
        return measure(pool, model, VALID)

    rounds = Rounds(total=7, cohort=5, valid_every=2, keep_last=9)
    pool = LocalPool(Garden(QUIET))
    engine = Engine(
        ALGORITHM,
        pool,
        CLIENTS,
        rounds,
        folder,
        5,
        validate,  # type: ignore[arg-type]
        Halt(stop_after),
        context=RunContext(valid=VALID),
    )
    return engine.run(params(), resume)


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    with pytest.raises(Stopped):
        run(tmp_path / "broken", stop_after=3)
    broken = run(tmp_path / "broken", resume=True)
    assert_same(broken.state, whole.state)
    assert isinstance(whole.state, DgaRlState)
    assert len(whole.state.learnt["duels"]["reward"]) == 7
    journals = [(tmp_path / name / "journal.jsonl").read_text().splitlines() for name in ("whole", "broken")]
    for line, other in zip(*journals, strict=True):
        assert line == other
    states = [tmp_path / name / "checkpoints" / "round-000007" for name in ("whole", "broken")]
    loaded = [load_file(state / "state.safetensors") for state in states]
    assert_same(*loaded)  # names the tensor
    assert len({(state / "state.safetensors").read_bytes() for state in states}) == 1


def test_the_clock_knows_what_measuring_the_candidates_took(tmp_path: Path) -> None:
    run(tmp_path)
    first, *rounds = read(tmp_path / "clock.jsonl")
    assert "task_evaluate_seconds" not in first  # the starting model is validated, nothing is chosen
    for line in rounds:
        assert 0 < line["task_evaluate_seconds"] < line["train_seconds"]
        assert line["task_train_seconds"] + line["task_evaluate_seconds"] <= line["train_seconds"]


# --- Learning whom to trust -----------------------------------------------------------------------


def test_momentum_makes_draws_of_duels_and_exaggeration_decides_them() -> None:
    inner = dga(beta=1.0, server=Adam(lr=0.05, epsilon=1e-6))
    num_draws = []
    for exaggeration in (1.0, 10.0):
        algorithm = DgaRl(inner, exaggeration=exaggeration, validation=VALID)
        state, rewards = begin(algorithm), []
        for round in range(12):
            cohort = sample_cohort(CLIENTS, 8, 0, round)
            state, metrics = algorithm.round(state, cohort, LocalPool(Garden(QUIET)))
            rewards.append(metrics["reward"])
        num_draws.append(rewards.count(algorithm.rewards.similar))
    assert num_draws[0] >= 8
    assert num_draws[1] <= 4


@pytest.mark.parametrize("bad_loss", [LOUD, QUIET], ids=["bad clients lose", "bad clients fool the softmax"])
def test_bad_clients_lose_their_weight_and_the_reward_rises(bad_loss: float) -> None:
    early, late = [], []
    for seed in range(4):
        rewards, trusted, by_softmax = learn(bad_loss, seed, num_rounds=100)
        assert mean(by_softmax[-20:]) > (0.3 if bad_loss == QUIET else 0.1)
        assert mean(trusted[-20:]) < 0.02
        early += rewards[:5]
        late += rewards[-20:]
    assert mean(late) > 0.9
    assert mean(late) > mean(early) + 0.4  # a lucky first draw may win at once: not so for all seeds


def learn(bad_loss: float, seed: int, num_rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Of each round: the reward, the weight bad clients had, and the weight the softmax gives them."""
    state, rewards, trusted, by_softmax = begin(seed=seed), [], [], []
    for round in range(num_rounds):
        cohort = sample_cohort(CLIENTS, 8, seed, round)
        pool = watch(Garden(bad_loss), cohort, round)
        state, metrics = ALGORITHM.round(state, cohort, pool)
        rewards.append(metrics["reward"])
        trusted.append(sum(pool.clients[client]["weight"] for client in cohort if client in BAD))
        likely = {client: math.exp(-pool.clients[client]["loss"]) for client in cohort}
        by_softmax.append(sum(likely[client] for client in cohort if client in BAD) / sum(likely.values()))
    return rewards, trusted, by_softmax


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
