"""Can it be told from a model update who spoke, and what was said?

    python benchmarks/who_spoke.py CORPUS --frontend FILE.onnx

A small Conformer with CTC is trained on the seed speakers. Other speakers are clients: an update is some SGD
steps on a few utterances of one speaker, with dropout and masks, by the real client code. The attacker has
updates of one session of every speaker, and sees one of the other session. update_attacks.py has the
attackers, gradient_inversion.py finds what was said.

Noise: the attacker knows all other clients and sees all rounds, and the client has one turn. Then, whether
noise is correlated or not, it sees the clipped update with Gaussian noise of σ(ε, δ) bounds. Intervals (95 %)
resample speakers, or cohorts, pooled over the seeds.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gradient_inversion as inversion
import numpy as np
import torch
import update_attacks as attacks
from client_updates import (
    QUICK,
    Sizes,
    Speech,
    client_updates,
    in_groups,
    make_speech,
    open_speech,
    train_seed,
    with_adapters,
)
from common import argument_parser, print_table, write_result
from torch import Tensor
from update_attacks import Setting

from antiphon.core import Tensors
from antiphon.scoring.statistics import Interval, rate_interval

COHORTS = (1, 5, 10)
GOAL = 2.0  # points that the best attacker may be above chance, at the recommended setting


# --- Who spoke ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """Updates of known and unknown speakers, before a setting changes them."""

    enrolled: list[Tensors]
    labels: Tensor
    unknown: list[Tensors]
    truth: Tensor

    @property
    def num_entries(self) -> int:
        """The number of entries of an update."""
        return sum(tensor.numel() for tensor in self.enrolled[0].values())


def identify(setting: Setting, seen: Seen, frames: Tensor, draws: int, seed: int) -> dict[str, np.ndarray]:
    """Return, for each attacker, right guesses and guesses of each speaker [2, N]."""
    generator, num_speakers = torch.Generator().manual_seed(seed), len(frames)
    enrolled = attacks.flat([setting.change(update) for update in seen.enrolled])
    changed = [setting.change(update) for update in seen.unknown]
    tensor_sizes = [tensor.numel() for tensor in changed[0].values()]
    clean = attacks.flat(changed)
    counts: dict[str, np.ndarray] = {}
    for _ in range(draws if setting.deviation else 1):
        unknown = clean + setting.deviation * torch.randn(clean.shape, generator=generator)
        scores = {
            name: score(enrolled, seen.labels, unknown)
            for name, score in attacks.attackers(tensor_sizes).items()
        }
        if attacks.WEIGHT in changed[0]:
            scores["frames"] = attacks.frame_scores(frames, [unflat(row, changed[0]) for row in unknown])
        for name, values in scores.items():
            right = seen.truth[values.argmax(1) == seen.truth]
            found = [x.bincount(minlength=num_speakers).numpy() for x in (right, seen.truth)]
            counts[name] = counts.get(name, 0) + np.array(found)
    return counts


def unflat(row: Tensor, like: Tensors) -> Tensors:
    parts = row.split([tensor.numel() for tensor in like.values()])
    return {name: part.view(like[name].shape) for name, part in zip(like, parts, strict=True)}


def attack_cohorts(
    setting: Setting, seen: Seen, size: int, num_cohorts: int, seed: int
) -> dict[str, dict[str, list[float]]]:
    """Return, for each attacker and cohort: is the first guess a member; does a member beat others?"""
    random = np.random.default_rng([seed, size])
    enrolled = attacks.flat([setting.change(update) for update in seen.enrolled])
    changed = [setting.change(update) for update in seen.unknown]
    rows, mean = attacks.flat(changed), enrolled.mean(0)
    num_speakers, generator = int(seen.labels.max()) + 1, torch.Generator().manual_seed(seed)
    members = torch.zeros(num_cohorts, num_speakers, dtype=torch.bool)
    sums = torch.empty(num_cohorts, rows.shape[1])
    for number in range(num_cohorts):
        speakers = random.choice(num_speakers, size, replace=False)
        members[number, speakers] = True
        chosen = [int(random.choice(np.flatnonzero(seen.truth.numpy() == s))) for s in speakers]
        sums[number] = rows[chosen].sum(0) - (size - 1) * mean
    sums += setting.deviation * torch.randn(sums.shape, generator=generator)
    found = {}
    for name, score in attacks.attackers([tensor.numel() for tensor in changed[0].values()]).items():
        scores = score(enrolled, seen.labels, sums)
        first = members[torch.arange(num_cohorts), scores.argmax(1)]
        wins = attacks.member_wins(scores, members)
        found[name] = {"first": first.double().tolist(), "wins": wins.tolist()}
    return found


# --- All of it ------------------------------------------------------------------------------------


def measure(speech: Speech, sizes: Sizes, seed: int) -> dict[str, Any]:
    """Return the counts of one seed."""
    torch.set_num_threads(1)
    model, params = train_seed(speech, sizes, seed)
    frames = torch.stack([mean_frame(speech, own) for own, _ in speech.sessions.values()])
    models = {"full": (model, params), "low rank": with_adapters(speech, params, sizes, seed)}
    both = [in_groups(speech, session, sizes.group, sizes.groups) for session in (0, 1)]
    seen = {}
    for part, (one, start) in models.items():
        sent = [list(client_updates(speech, one, start, part, clients, seed)) for clients, _ in both]
        seen[part] = Seen(sent[0], both[0][1], sent[1], both[1][1])
    print(f"seed {seed}: updates are there", flush=True)
    chosen, cohorts = attacks.settings_for(seed), [size for size in COHORTS if size < len(frames)]
    result = {
        "num_parameters": {part: some.num_entries for part, some in seen.items()},
        "updates": {"known": len(seen["full"].labels), "unknown": len(seen["full"].truth)},
        "norm": float(attacks.flat(seen["full"].unknown).norm(dim=1).median()),
        "who": {s.name: identify(s, seen[s.part], frames, sizes.draws, seed) for s in chosen},
        "cohorts": {
            s.name: {k: attack_cohorts(s, seen[s.part], k, sizes.cohorts, seed) for k in cohorts}
            for s in chosen
            if s.is_tried_in_cohorts
        },
    }
    print(f"seed {seed}: speakers were looked for", flush=True)
    result["words"] = inversion.read_tokens(speech, model, params, sizes, seed)
    result["inverted"] = inversion.invert_some(speech, model, params, frames, sizes, seed)
    print(f"seed {seed}: done", flush=True)
    return result


def mean_frame(speech: Speech, utterances: np.ndarray) -> Tensor:
    features = [speech.store.features(int(index)) for index in utterances]
    return torch.from_numpy(np.concatenate(features).astype(np.float32)).mean(0)


def best_row(counts: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return each attacker's rate with its interval, and the name of the best; counts are [2, units]."""
    rates = {name: interval_of(right, total) for name, (right, total) in counts.items()}
    return {"best": max(rates, key=lambda name: rates[name]["rate"]), "attackers": rates}


def interval_of(right: np.ndarray, total: np.ndarray) -> dict[str, Any]:
    found = rate_interval(right, total) or Interval(float(sum(right) / sum(total)), 0.0, 1.0)
    return {"rate": found.estimate, "interval": [found.low, found.high]}


def summarise(found: Sequence[dict[str, Any]], num_speakers: int) -> dict[str, Any]:
    """Pool the seeds."""
    return {
        "speakers": num_speakers,
        "num_parameters": found[0]["num_parameters"],
        "updates": found[0]["updates"],
        "identification": [pool_speakers(found, name, num_speakers) for name in found[0]["who"]],
        "cohorts": [
            pool_cohorts(found, name, size, num_speakers)
            for name, sizes in found[0]["cohorts"].items()
            for size in sizes
        ],
        "tokens": [pool_tokens(found, name) for name in found[0]["words"]],
        "inversions": [row for one in found for row in one["inverted"]],
        "median_norm": [one["norm"] for one in found],
    }


def pool_speakers(found: Sequence[dict[str, Any]], name: str, num_speakers: int) -> dict[str, Any]:
    every = [one["who"][name] for one in found]
    by_seed = {a: [float(one[a][0].sum() / one[a][1].sum()) for one in every] for a in every[0]}
    counts = {a: sum(one[a] for one in every) for a in every[0]}
    return {"setting": name, "chance": 1 / num_speakers, **best_row(counts), "by_seed": by_seed}


def pool_cohorts(found: Sequence[dict[str, Any]], name: str, size: int, num_speakers: int) -> dict[str, Any]:
    row: dict[str, Any] = {"setting": name, "cohort": size, "chance": size / num_speakers}
    every = [one["cohorts"][name][size] for one in found]
    for what in ("first", "wins"):
        pooled = {a: np.concatenate([one[a][what] for one in every]) for a in every[0]}
        row[what] = best_row({a: np.stack([x, np.ones_like(x)]) for a, x in pooled.items()})
    return row


def pool_tokens(found: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    every = [one["words"][name] for one in found]
    total = {key: sum(one[key] for one in every) for key in ("named", "right", "occurring", "all")}
    lengths = {key: float(np.mean([one[key] for one in every])) for key in every[0] if "length" in key}
    precision = total["right"] / total["named"] if total["named"] else None
    rates = {"precision": precision, "recall": total["right"] / total["occurring"]}
    return {"setting": name, **rates, "base_rate": total["occurring"] / total["all"], **lengths}


def recommended_above_chance(result: Mapping[str, Any]) -> float:
    """Return how many points the best attacker is above chance at the recommended setting."""
    row = next(row for row in result["identification"] if "recommended" in row["setting"])
    return 100 * float(row["attackers"][row["best"]]["rate"] - row["chance"])


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"


def rate_text(row: Mapping[str, Any]) -> str:
    best = row["attackers"][row["best"]]
    low, high = best["interval"]
    return f"{percent(best['rate'])} [{percent(low)}, {percent(high)}]"


def show(result: Mapping[str, Any]) -> None:
    names = ("cosine", "ridge", "matched", "frames")
    print(f"{result['speakers']} speakers, chance {percent(1 / result['speakers'])} %")
    rows = []
    for row in result["identification"]:
        rates = [row["attackers"].get(name) for name in names]
        rows.append([row["setting"], rate_text(row), *(percent(r["rate"]) if r else "" for r in rates)])
    print_table(["what is seen", "best attacker %", *(f"{name} %" for name in names)], rows)
    above = recommended_above_chance(result)
    met = "met" if above <= GOAL else "missed"
    print(f"recommended setting: {above:.1f} points above chance; the goal of {GOAL:g} is {met}")
    header = ["what is seen", "cohort", "chance %", "first guess is a member %", "member beats other %"]
    rows = [
        [r["setting"], str(r["cohort"]), percent(r["chance"]), rate_text(r["first"]), rate_text(r["wins"])]
        for r in result["cohorts"]
    ]
    print_table(header, rows)
    shares = {
        "precision": 1,
        "recall": 1,
        "base_rate": 1,
        "length_error": 0,
        "length_error_without_update": 0,
    }
    rows = [
        [row["setting"], *(percent(row[key], digits) for key, digits in shares.items())]
        for row in result["tokens"]
    ]
    header = ["what is seen", *(f"{key.replace('_', ' ')} %" for key in shares)]
    print_table(header, rows)
    show_inversions(result["inversions"])


def show_inversions(inversions: Sequence[Mapping[str, Any]]) -> None:
    keys = [key for key in inversions[0] if key != "setting"]
    rows = []
    for name in dict.fromkeys(row["setting"] for row in inversions):
        tried = [row for row in inversions if row["setting"] == name]
        means = [f"{np.mean([row[key] for row in tried]):.3f}" for key in keys]
        rows.append([name, str(len(tried)), *means])
    print_table(["what is seen", "utterances", *(key.replace("_", " ") for key in keys)], rows)


def main() -> None:
    parser = argument_parser(__doc__, "who_spoke")
    parser.add_argument("corpus", type=Path, nargs="?", help="a corpus folder with sessions")
    parser.add_argument("--frontend", type=Path, help="the encoder, an ONNX file")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--processes", type=int, default=1, help="seeds at a time")
    parser.add_argument("--groups", type=int, default=Sizes.groups, help="updates of a speaker and session")
    parser.add_argument("--inversions", type=int, default=Sizes.inversions, help="utterances, for each seed")
    arguments = parser.parse_args()
    if arguments.quick:
        with tempfile.TemporaryDirectory() as folder:
            speech = make_speech(Path(folder) / "corpus")
            write(arguments, speech, QUICK, [0, 1], [measure(speech, QUICK, seed) for seed in (0, 1)])
        return
    if not arguments.corpus or not arguments.frontend:
        parser.error("give a corpus and --frontend, or --quick")
    speech = open_speech(arguments.corpus, arguments.frontend, arguments.processes)
    sizes, found = Sizes(groups=arguments.groups, inversions=arguments.inversions), []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, context) as pool:
        for one in pool.map(partial(measure, speech, sizes), arguments.seeds):
            found.append(one)
            write(arguments, speech, sizes, arguments.seeds[: len(found)], found)


def write(
    arguments: Any, speech: Speech, sizes: Sizes, seeds: Sequence[int], found: Sequence[dict[str, Any]]
) -> None:
    """Show and write the result of the seeds that are done."""
    result = summarise(found, len(speech.sessions))
    show(result)
    about = {"seeds": seeds, "input_dim": speech.store.dim, "sizes": vars(sizes)}
    about |= {"bound": attacks.BOUND, "delta": attacks.DELTA}
    sized = ["--groups", str(sizes.groups), "--inversions", str(sizes.inversions)]
    options = [] if arguments.quick else ["CORPUS", "--frontend", "FILE.onnx", *sized]
    write_result(arguments, {**about, **result}, *options)


if __name__ == "__main__":
    main()
