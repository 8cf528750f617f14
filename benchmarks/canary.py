"""Can it be told from what the server publishes whether one client said a rare word?

    python benchmarks/canary.py AMI_TEXT

Clients are the meetings of the pool, T rounds, cumulative caches. A word that nobody uses is planted in the
first round of one client. Two worlds, equally likely: with the unit, or without it. The unit is an utterance
of that word alone; a client who says it 20 times in a meeting; or a client who says nothing else, 500 times.
Clients, pool, server and release are the real ones. Three attackers, who know all the other data:

published   looks at q̄ of the word, summed over the rounds; its threshold is fitted on other trials
word        likelihood ratio of the word's noised counts of all rounds
all words   likelihood ratio of all noised counts of all rounds: no attacker is better

ε-DP lets nobody be right more often than e^ε / (1 + e^ε), and (ε, δ)-DP than (e^ε + δ) / (1 + e^ε).
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import argument_parser, print_table, write_result
from scipy.stats import binomtest
from torch import Tensor

from antiphon.algorithms.fmp import MARGINAL, Fmp, background_params, by_pseudo_count
from antiphon.core import Collected, Task, Update, Weigh
from antiphon.personalisation.marginal_adaptation import Unigram, estimate_unigram
from antiphon.personalisation.word_cache import Cache, MarginalWorker
from antiphon.pools.local import LocalPool
from antiphon.privacy.accounting import Basic, Budget, Renyi
from antiphon.privacy.ledger import Ledger
from antiphon.privacy.mechanisms import Cap, CapL1, CapL2, Gaussian, Laplace, Rounded, gaussian_for
from antiphon.privacy.release import PrivateRelease
from antiphon.privacy.samplers import Seeded

CANARY = "zyzzyva"
DELTA = 1e-5
EPSILONS = (2.0, 1.0, 0.5, 0.1)
ATTACKERS = ("published", "word", "all words")


@dataclass(frozen=True)
class Unit:
    """What is there in one world only: the word, said so often, by a client who says more or nothing else.

    stays: the client is there in both worlds, without the word in one of them.
    """

    name: str
    times: int
    says_more: bool
    stays: bool


UTTERANCE = Unit("utterance", times=1, says_more=True, stays=True)
CLIENT = Unit("client", times=20, says_more=True, stays=False)
PARROT = Unit("client of one word", times=500, says_more=False, stays=False)


@dataclass(frozen=True)
class Case:
    """Noise and cap; the ε that is claimed for them, and the ε of all rounds for the unit."""

    name: str
    unit: Unit
    mechanism: Laplace | Gaussian | None
    claimed: float
    epsilon: float
    delta: float = 0.0
    cap: Cap = Rounded()


# --- Worlds ---------------------------------------------------------------------------------------


def read_meetings(folder: Path, split: str) -> dict[str, list[str]]:
    """Texts of each meeting of a split, in time order."""
    meetings: dict[str, list[str]] = {}
    with gzip.open(folder / "utterances.jsonl.gz", "rt", encoding="utf-8") as lines:
        for utterance in map(json.loads, lines):
            if utterance["split"] == split:
                meetings.setdefault(utterance["meeting"], []).append(utterance["text"])
    return meetings


def make_background(texts: Sequence[str], size: int) -> Unigram:
    """The most frequent words of public text, and the canary."""
    frequent = {word for word, _ in Counter(" ".join(texts).split()).most_common(size)}
    known = (" ".join(word for word in text.split() if word in frequent) for text in texts)
    return estimate_unigram(known, [CANARY])


def caches_by_round(texts: Sequence[str], background: Unigram, rounds: int) -> list[Cache]:
    """A client's running cache after each round: everything it said so far."""
    cache, caches = Cache(), []
    for group in np.array_split(np.array(texts, dtype=object), rounds):
        ids = background.encode(" ".join(group))
        cache = cache.plus(ids, np.ones(len(ids)))
        caches.append(cache)
    return caches


@dataclass(frozen=True)
class Worlds:
    """What the server is told in each round, with the unit and without it."""

    background: Unigram
    present: list[Update]
    absent: list[Update]

    @classmethod
    def of(cls, speech: Mapping[str, list[Cache]], background: Unigram, unit: Unit, cap: Cap) -> Worlds:
        target, *others = sorted(speech)
        word, times = np.array([background.ids[CANARY]]), np.array([float(unit.times)])
        own = speech[target] if unit.says_more else [Cache()] * len(speech[target])
        rest = {name: speech[name] for name in others}
        with_unit = {**rest, target: [cache.plus(word, times) for cache in own]}
        without = {**rest, target: own} if unit.stays else rest
        return cls(background, *(told(clients, background.size, cap) for clients in (with_unit, without)))


def told(clients: Mapping[str, list[Cache]], size: int, cap: Cap) -> list[Update]:
    """What clients answer in each round, through a pool."""
    rounds = len(next(iter(clients.values())))
    caches = [{name: mine[round] for name, mine in clients.items()} for round in range(rounds)]
    pools = [LocalPool(MarginalWorker(each, size, cap)) for each in caches]
    return [pool.reduce(Task(MARGINAL), sorted(clients), by_pseudo_count) for pool in pools]


def counts_of(update: Update) -> Tensor:
    return update.mean[MARGINAL] * math.exp(update.log_weight)


@dataclass(frozen=True)
class Replay:
    """A pool of clients who say what they said before: what they say does not depend on the noise."""

    update: Update

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        return self.update

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        raise NotImplementedError


# --- Attacks --------------------------------------------------------------------------------------


def log_likelihood(mechanism: Laplace | Gaussian, noise: Tensor) -> Tensor:
    """Of noise in counts, up to a constant."""
    scale = mechanism.scale * mechanism.step
    return -noise.abs() / scale if isinstance(mechanism, Laplace) else -(noise**2) / (2 * scale**2)


def observe(worlds: Worlds, case: Case, secret: bool, seed: int) -> list[float]:
    """One run of the server, with the unit (`secret`) or without: the statistic of each attacker."""
    algorithm, canary = Fmp(release=release_for(case, worlds, seed)), worlds.background.ids[CANARY]
    state = algorithm.init(background_params(worlds.background.probabilities.tolist()))
    published, ratios = 0.0, torch.zeros(worlds.background.size, dtype=torch.float64)
    for present, absent in zip(worlds.present, worlds.absent, strict=True):
        state, _ = algorithm.round(state, [], Replay(present if secret else absent))
        published += float(state.params[MARGINAL][canary])
        if case.mechanism:
            noised = state.released["noised"]
            ratios += log_likelihood(case.mechanism, noised - counts_of(present))
            ratios -= log_likelihood(case.mechanism, noised - counts_of(absent))
    return [published, float(ratios[canary]), float(ratios.sum())]


def release_for(case: Case, worlds: Worlds, seed: int) -> PrivateRelease | None:
    if case.mechanism is None:
        return None
    unlimited = Ledger(Budget(1e9, DELTA))  # the attack is on the noise: nothing is to be stopped here
    background = torch.from_numpy(worlds.background.probabilities)
    return PrivateRelease(case.mechanism, unlimited, background, Seeded(seed))


def attack(worlds: Worlds, case: Case, trials: int) -> dict[str, Any]:
    """Success of each attacker over `trials` runs of each world: the first half fits the threshold of one."""
    secrets = np.tile([True, False], trials)
    seen = np.array([observe(worlds, case, bool(secret), seed) for seed, secret in enumerate(secrets)])
    half = 2 * (trials // 2)
    threshold = best_threshold(seen[:half, 0], secrets[:half])
    coins = np.random.default_rng(0).random(len(secrets)) < 0.5  # where a ratio says nothing
    guesses = np.where(seen == 0, coins[:, None], seen > 0)
    guesses[:, 0] = seen[:, 0] > threshold
    right = guesses == secrets[:, None]
    found = {ATTACKERS[0]: success(right[half:, 0])}
    if case.mechanism:
        found |= {name: success(right[:, place]) for place, name in enumerate(ATTACKERS) if place}
    return found


def best_threshold(values: np.ndarray, secrets: np.ndarray) -> float:
    """The middle between two values above which guessing "with" is right most often."""
    distinct = np.unique(values)
    candidates = np.concatenate([[-np.inf], (distinct[1:] + distinct[:-1]) / 2])
    right = [((values > candidate) == secrets).sum() for candidate in candidates]
    return float(candidates[int(np.argmax(right))])


def success(right: np.ndarray) -> dict[str, Any]:
    """How often an attacker is right, with a 95 % interval, and its advantage over a coin."""
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(method="exact")
    rate = float(right.mean())
    return {"rate": rate, "interval": [interval.low, interval.high], "advantage": 2 * rate - 1}


# --- Cases and tables -----------------------------------------------------------------------------


def make_cases(rounds: int, limit_l1: float, limit_l2: float) -> list[Case]:
    cases = [Case("none", unit, None, math.inf, math.inf) for unit in (UTTERANCE, CLIENT)]
    for epsilon in EPSILONS:
        cases.append(Case("eq. 9", UTTERANCE, Laplace(1.0, epsilon), epsilon, rounds * epsilon))
    cases.append(Case("eq. 9", CLIENT, Laplace(1.0, 0.5), 0.5, math.inf))
    for unit in (CLIENT, PARROT):
        cases += [_capped_l1(epsilon, unit, rounds, limit_l1) for epsilon in EPSILONS]
        cases += [_capped_l2(epsilon, unit, rounds, limit_l2) for epsilon in EPSILONS]
    return cases


def _capped_l1(epsilon: float, unit: Unit, rounds: int, limit: float) -> Case:
    mechanism = Laplace(limit, epsilon / rounds)
    total = Basic().epsilon([(mechanism.loss, rounds)], 0.0)
    return Case(f"Laplace, l1 cap {limit:g}", unit, mechanism, total, total, cap=CapL1(limit))


def _capped_l2(epsilon: float, unit: Unit, rounds: int, limit: float) -> Case:
    mechanism = gaussian_for(limit, Budget(epsilon, DELTA), rounds)
    total = Renyi().epsilon([(mechanism.loss, rounds)], DELTA)
    return Case(f"Gaussian, l2 cap {limit:g}", unit, mechanism, total, total, DELTA, CapL2(limit))


def bound(epsilon: float, delta: float) -> float:
    """The most often that anyone may be right."""
    return 1.0 if epsilon > 500 else (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))


def described(case: Case) -> dict[str, Any]:
    epsilons = {"claimed": case.claimed, "epsilon": case.epsilon}
    return {
        "noise": case.name,
        "unit": case.unit.name,
        **{name: value if math.isfinite(value) else None for name, value in epsilons.items()},
        "delta": case.delta,
        "bound_of_claim": bound(case.claimed, case.delta),
        "bound": bound(case.epsilon, case.delta),
    }


HEADER = ["noise", "unit", "claimed ε", "bound %", *(f"{name} %" for name in ATTACKERS), "bound %", "total ε"]


def row_of(found: Mapping[str, Any]) -> list[str]:
    claimed, total = ("∞" if found[name] is None else f"{found[name]:.3g}" for name in ("claimed", "epsilon"))
    bounds = [f"{100 * found[name]:.1f}" for name in ("bound_of_claim", "bound")]
    rates = [percent(found[name]) if name in found else "" for name in ATTACKERS]
    return [found["noise"], found["unit"], claimed, bounds[0], *rates, bounds[1], total]


def percent(found: Mapping[str, Any]) -> str:
    low, high = (100 * end for end in found["interval"])
    return f"{100 * found['rate']:.1f} [{low:.1f}, {high:.1f}]"


def main() -> None:
    parser = argument_parser(__doc__, "canary")
    parser.add_argument("folder", type=Path, help="ami_text: holds utterances.jsonl.gz")
    parser.add_argument("--trials", type=int, default=250, help="runs of each world")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    trials, size, rounds = (4, 20, 2) if arguments.quick else (arguments.trials, 500, arguments.rounds)
    meetings = read_meetings(arguments.folder, "pool")
    public = [text for texts in read_meetings(arguments.folder, "heldout").values() for text in texts]
    background = make_background(public, size)
    speech = {name: caches_by_round(texts, background, rounds) for name, texts in meetings.items()}
    worlds: dict[tuple[Unit, Cap], Worlds] = {}
    results: list[dict[str, Any]] = []
    for case in make_cases(rounds, limit_l1=100.0, limit_l2=20.0):
        key = (case.unit, case.cap)
        if key not in worlds:
            worlds[key] = Worlds.of(speech, background, case.unit, case.cap)
        results.append({**described(case), **attack(worlds[key], case, trials)})
    print_table(HEADER, [row_of(found) for found in results])
    about = {"clients": len(meetings), "words": background.size, "rounds": rounds, "trials": trials}
    options = [] if arguments.quick else ["--trials", str(trials), "--rounds", str(rounds)]
    write_result(arguments, {**about, "cases": results}, "AMI_TEXT", *options)


if __name__ == "__main__":
    main()
