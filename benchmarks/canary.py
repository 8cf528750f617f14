"""Can it be told from what the server publishes whether one client said a rare word?

    python benchmarks/canary.py AMI_TEXT

Clients are the meetings of the pool. A word that nobody uses is planted in one of them, in the first of T
groups of utterances; caches are cumulative, so every round carries it. Two worlds, each as likely: with the
unit, or without. The unit is an utterance of that one word, or the whole meeting, in which the word is said 20
times. Clients, pool, server and release are the real ones. Three attackers, who know everything else:

published   looks at q̄ of the word, averaged over the rounds; its threshold is fitted on other trials
word        likelihood ratio of the word's noised counts of all rounds
all words   likelihood ratio of all noised counts: the strongest there is

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

from antiphon.algorithms.fmp import MARGINAL, Fmp, background_params
from antiphon.clients.marginals import MarginalWorker
from antiphon.core import Task, Update, Weigh
from antiphon.decoding.cache import Cache
from antiphon.models.unigram import Unigram, estimate_unigram
from antiphon.pools.local import LocalPool
from antiphon.privacy.ledger import Ledger
from antiphon.privacy.losses import Basic, Budget, Renyi
from antiphon.privacy.mechanisms import Cap, CapL1, CapL2, Gaussian, Laplace, Rounded, gaussian_for
from antiphon.privacy.noise import Seeded
from antiphon.privacy.release import PrivateRelease
from antiphon.privacy.simplex import Clamp

CANARY = "zyzzyva"
DELTA = 1e-5
TIMES = 20  # that a client says it
EPSILONS = (2.0, 1.0, 0.5, 0.1)


@dataclass(frozen=True)
class Case:
    """Noise, and what it is said to protect and really protects: ε of all rounds, at δ."""

    name: str
    unit: str
    mechanism: Laplace | Gaussian | None
    claimed: float
    epsilon: float
    delta: float = 0.0
    cap: Cap = Rounded()


@dataclass(frozen=True)
class Replay:
    """A pool whose clients say what they said before: their answers do not depend on the noise."""

    update: Update

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        return self.update


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
    """The most frequent words of text that is public, and the canary."""
    frequent = [word for word, _ in Counter(" ".join(texts).split()).most_common(size)]
    kept = set(frequent)
    return estimate_unigram(
        (" ".join(word for word in text.split() if word in kept) for text in texts), [CANARY]
    )


def caches_by_round(texts: Sequence[str], background: Unigram, rounds: int) -> list[Cache]:
    """A client's running cache after each round: everything it said so far."""
    cache, caches = Cache(), []
    for group in np.array_split(np.array(texts, dtype=object), rounds):
        ids = background.encode(" ".join(group))
        cache = cache.plus(ids, np.ones(len(ids)))
        caches.append(cache)
    return caches


def pooled_by_round(clients: Mapping[str, Sequence[Cache]], size: int, cap: Cap, rounds: int) -> list[Update]:
    """What the server gets in each round, through a real pool."""
    updates = []
    for round in range(rounds):
        caches = {name: caches[round] for name, caches in clients.items()}
        pool = LocalPool(MarginalWorker(caches, size, cap))
        seen: list[Update] = []
        Fmp().round(Fmp().init(background_params([1 / size] * size)), sorted(caches), Recording(pool, seen))
        updates += seen
    return updates


@dataclass(frozen=True)
class Recording:
    """A pool that keeps what it gave."""

    pool: LocalPool
    seen: list[Update]

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        self.seen.append(self.pool.reduce(task, cohort, weigh))
        return self.seen[-1]


@dataclass(frozen=True)
class Worlds:
    """What the server gets in each round, with the unit and without it."""

    background: Unigram
    with_it: list[Update]
    without: list[Update]

    @property
    def canary(self) -> int:
        return self.background.ids[CANARY]


def make_worlds(meetings: Mapping[str, list[str]], background: Unigram, case: Case, rounds: int) -> Worlds:
    target = sorted(meetings)[0]
    if case.unit == "utterance":
        others, member = dict(meetings), [CANARY, *meetings[target]]
    else:
        others = {name: texts for name, texts in meetings.items() if name != target}
        member = [" ".join([CANARY] * TIMES), *meetings[target]]
    absent = {name: caches_by_round(texts, background, rounds) for name, texts in others.items()}
    present = {**absent, target: caches_by_round(member, background, rounds)}
    with_it, without = (
        pooled_by_round(clients, background.size, case.cap, rounds) for clients in (present, absent)
    )
    return Worlds(background, with_it, without)


def counts_of(update: Update) -> Tensor:
    return update.mean[MARGINAL] * math.exp(update.log_weight)


# --- Attacks --------------------------------------------------------------------------------------


def log_likelihood(mechanism: Laplace | Gaussian, noise: Tensor) -> Tensor:
    """Of noise in counts, up to a constant."""
    scale = mechanism.scale * mechanism.step
    return -noise.abs() / scale if isinstance(mechanism, Laplace) else -(noise**2) / (2 * scale**2)


@dataclass(frozen=True)
class Evidence:
    """What the attackers see of one run."""

    published: float
    word: float
    all_words: float


def observe(worlds: Worlds, case: Case, secret: bool, seed: int) -> Evidence:
    """One run of the server in the world with the unit (`secret`) or without."""
    told = worlds.with_it if secret else worlds.without
    algorithm = Fmp(release=release_for(case, worlds.background, seed)) if case.mechanism else Fmp()
    state = algorithm.init(background_params(worlds.background.probabilities.tolist()))
    published = ratio = 0.0
    ratios = torch.zeros(worlds.background.size, dtype=torch.float64)
    for round, update in enumerate(told):
        state, _ = algorithm.round(state, ["everyone"], Replay(update))  # type: ignore[arg-type]
        published += float(state.params[MARGINAL][worlds.canary])
        if case.mechanism:
            noised = state.released["noised"]
            likely = [
                log_likelihood(case.mechanism, noised - counts_of(world[round]))
                for world in (worlds.with_it, worlds.without)
            ]
            ratios += likely[0] - likely[1]
    ratio = float(ratios[worlds.canary])
    return Evidence(published, ratio, float(ratios.sum()))


def release_for(case: Case, background: Unigram, seed: int) -> PrivateRelease:
    assert case.mechanism is not None
    ledger = Ledger(Budget(1e9, DELTA))  # the attack is on the noise: nothing is to be stopped here
    u = torch.from_numpy(background.probabilities)
    return PrivateRelease(case.mechanism, ledger, u, Seeded(seed), Clamp())


def success(right: int, trials: int) -> dict[str, Any]:
    """How often an attacker is right, with a 95 % interval, and its advantage over a coin."""
    interval = binomtest(right, trials).proportion_ci(method="exact")
    rate = right / trials
    return {"rate": rate, "interval": [interval.low, interval.high], "advantage": 2 * rate - 1}


def attack(worlds: Worlds, case: Case, trials: int) -> dict[str, Any]:
    """Success of each attacker over `trials` runs of each world."""
    secrets = np.tile([True, False], trials)
    evidence = [observe(worlds, case, bool(secret), seed) for seed, secret in enumerate(secrets)]
    coins = np.random.default_rng(0).random(len(secrets)) < 0.5
    found = {}
    if case.mechanism:
        for name in ("word", "all_words"):
            ratios = np.array([getattr(run, name) for run in evidence])
            guesses = np.where(ratios == 0, coins, ratios > 0)
            found[name] = success(int((guesses == secrets).sum()), len(secrets))
    published = np.array([run.published for run in evidence])
    half = len(secrets) // 2
    threshold = best_threshold(published[:half], secrets[:half])
    guesses = published[half:] > threshold
    return {"published": success(int((guesses == secrets[half:]).sum()), len(secrets) - half), **found}


def best_threshold(values: np.ndarray, secrets: np.ndarray) -> float:
    """The middle between two values above which guessing "with" is right most often."""
    distinct = np.unique(values)
    candidates = np.concatenate([[-np.inf], (distinct[1:] + distinct[:-1]) / 2])
    right = [((values > candidate) == secrets).sum() for candidate in candidates]
    return float(candidates[int(np.argmax(right))])


# --- Cases ----------------------------------------------------------------------------------------


def make_cases(rounds: int, limit_l1: float, limit_l2: float) -> list[Case]:
    none = [Case("no noise", unit, None, math.inf, math.inf) for unit in ("utterance", "client")]
    paper = [
        Case(f"eq. 9, {epsilon:g}", "utterance", Laplace(1.0, epsilon), epsilon, rounds * epsilon)
        for epsilon in EPSILONS
    ]
    uncapped = [
        Case(f"eq. 9, {epsilon:g}", "client", Laplace(1.0, epsilon), epsilon, math.inf)
        for epsilon in EPSILONS[1::2]
    ]
    capped = [_capped_l1(epsilon, rounds, limit_l1) for epsilon in EPSILONS]
    return [
        *none,
        *paper,
        *uncapped,
        *capped,
        *(_capped_l2(epsilon, rounds, limit_l2) for epsilon in EPSILONS),
    ]


def _capped_l1(epsilon: float, rounds: int, limit: float) -> Case:
    mechanism = Laplace(limit, epsilon / rounds)
    total = Basic().epsilon([(mechanism.loss, rounds)], 0.0)
    return Case(f"l1 cap {limit:g}, Laplace", "client", mechanism, total, total, cap=CapL1(limit))


def _capped_l2(epsilon: float, rounds: int, limit: float) -> Case:
    mechanism = gaussian_for(limit, epsilon, DELTA, rounds)
    total = Renyi().epsilon([(mechanism.loss, rounds)], DELTA)
    return Case(f"l2 cap {limit:g}, Gaussian", "client", mechanism, total, total, DELTA, CapL2(limit))


def bound(epsilon: float, delta: float) -> float:
    """The most often that anyone may be right."""
    return 1.0 if epsilon > 500 else (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))


def main() -> None:
    parser = argument_parser(__doc__, "canary")
    parser.add_argument("folder", type=Path, help="ami_text: utterances.jsonl.gz")
    parser.add_argument("--trials", type=int, default=400, help="runs of each world")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    trials, size = (40, 50) if arguments.quick else (arguments.trials, 500)
    meetings = read_meetings(arguments.folder, "pool")
    public = [text for texts in read_meetings(arguments.folder, "heldout").values() for text in texts]
    background = make_background(public, size)
    worlds: dict[tuple[str, Cap], Worlds] = {}
    results = []
    for case in make_cases(arguments.rounds, limit_l1=100.0, limit_l2=20.0):
        key = (case.unit, case.cap)
        if key not in worlds:
            worlds[key] = make_worlds(meetings, background, case, arguments.rounds)
        found = attack(worlds[key], case, trials)
        results.append({**described(case), **found})
        print(json.dumps(results[-1]), flush=True)
    print_table(HEADER, [row_of(result) for result in results])
    options = [*(["--trials", str(trials)] if not arguments.quick else [])]
    about = {"clients": len(meetings), "words": background.size, "rounds": arguments.rounds, "trials": trials}
    write_result(arguments, {**about, "cases": results}, *options)


HEADER = ["noise", "unit", "claimed", "total", "published %", "word %", "all words %", "bound %"]


def described(case: Case) -> dict[str, Any]:
    finite = {"claimed": case.claimed, "epsilon": case.epsilon}
    return {
        "noise": case.name,
        "unit": case.unit,
        **{name: value if math.isfinite(value) else None for name, value in finite.items()},
        "delta": case.delta,
        "bound_of_claim": bound(case.claimed, case.delta),
        "bound": bound(case.epsilon, case.delta),
    }


def row_of(result: Mapping[str, Any]) -> list[str]:
    epsilons = ["none" if result[name] is None else f"{result[name]:.3g}" for name in ("claimed", "epsilon")]
    rates = [percent(result.get(name)) for name in ("published", "word", "all_words")]
    return [result["noise"], result["unit"], *epsilons, *rates, f"{100 * result['bound']:.1f}"]


def percent(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    low, high = (100 * end for end in found["interval"])
    return f"{100 * found['rate']:.1f} [{low:.1f}, {high:.1f}]"


if __name__ == "__main__":
    main()
