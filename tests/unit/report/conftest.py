"""Run folders of any size that look like real ones: the shape of a run, no training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def make_run(folder: Path, **options: Any) -> Path:
    """Writes a run folder; see `Maker` for the options."""
    Maker(**options).write(folder)
    return folder


@pytest.fixture(name="make_run")
def make_run_fixture():
    return make_run


class Maker:
    def __init__(
        self,
        *,
        seed: int = 0,
        rounds: int = 12,
        planned: int | None = None,
        num_clients: int = 10,
        cohort_size: int = 4,
        num_speakers: int = 12,
        gain: float = 0.35,
        sharpness: float = 0.0,
        validate_every: int = 1,
        failure_rate: float = 0.05,
        splits: tuple[str, ...] = ("test",),
        which: tuple[str, ...] = ("start", "best"),
        gpu: bool = False,
        config: dict[str, Any] | None = None,
        client_names: list[str] | None = None,
    ) -> None:
        self.random = np.random.default_rng(seed + 1)
        # Test speakers are the same people in every run, so that runs can be compared.
        self.people = np.random.default_rng(99)
        self.seed, self.rounds, self.planned = seed, rounds, planned or max(rounds, 1)
        self.cohort_size = cohort_size
        self.num_speakers, self.gain, self.sharpness = num_speakers, gain, sharpness
        self.validate_every, self.failure_rate, self.gpu = validate_every, failure_rate, gpu
        self.splits, self.which = splits, which
        self.config = config or {"algorithm": {"name": "fedavg"}}
        self.clients = client_names or [f"speaker/{100 + 7 * k}" for k in range(num_clients)]
        self.difficulty = self.random.normal(0, 0.35, len(self.clients))
        self.num_utterances = self.random.integers(8, 60, len(self.clients))

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        about = {
            "format": "antiphon-run/1",
            "name": folder.name,
            "recipe": "librispeech_ctc",
            "seed": self.seed,
            "config": {
                "model": {"encoder": {"layers": 4, "width": 144, "dropout": 0.1}, "kind": "ctc"},
                "client": {"epochs": 1, "lr": 0.05, "batch_seconds": 60.0, "clip": 5.0},
                **self.config,
            },
            "num_parameters": 1_253_405,
            "num_clients": len(self.clients),
            "cohort_size": self.cohort_size,
            "rounds": self.planned,
            "versions": {"antiphon": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "numpy": "2.4.6"},
            "commit": "3f9d2c1a7be04455a1c0c6d1a0a8e7a9d0f1b2c3",
            "device": "NVIDIA H200" if self.gpu else "cpu",
            "started_from": "seed/model",
        }
        (folder / "run.json").write_text(json.dumps(about), encoding="utf-8")
        journal = [{"round": 0, "valid": self.validation(0)}] if self.validate_every else []
        journal += [self.round(number) for number in range(1, self.rounds + 1)]
        write_lines(folder / "journal.jsonl", journal)
        write_lines(folder / "clock.jsonl", [self.tick(number) for number in range(1, self.rounds + 1)])
        for split in self.splits:
            for which in self.which:
                self.write_scores(folder / "evaluation" / split / which, split, which)

    def progress(self, number: int) -> float:
        return self.gain * (1 - np.exp(-5 * number / self.planned))

    def validation(self, number: int) -> dict[str, float]:
        wer = 0.42 * (1 - self.progress(number)) + self.random.normal(0, 0.004)
        return {"wer": round(wer, 5), "cer": round(wer * 0.31, 5), "loss": round(24 * wer, 4)}

    def round(self, number: int) -> dict[str, Any]:
        drawn = self.random.choice(len(self.clients), min(self.cohort_size, len(self.clients)), replace=False)
        failed = self.random.random(len(drawn)) < self.failure_rate
        answered = drawn[~failed] if not failed.all() else drawn
        losses = 2.4 * (1 - self.progress(number)) + self.difficulty[answered]
        losses = losses + self.random.normal(0, 0.08, len(answered))
        weights = self.num_utterances[answered] * np.exp(-self.sharpness * losses)
        weights = weights / weights.sum()
        reasons = ("dropped out (simulated)", "update holds NaN", "no utterance fits the model")
        entry: dict[str, Any] = {
            "round": number,
            "cohort": [self.clients[k] for k in drawn],
            "clients": {
                self.clients[k]: {
                    "loss": round(float(loss), 5),
                    "weight": round(float(weight), 7),
                    "norm": round(
                        float(0.9 * np.exp(-number / self.planned) * self.random.lognormal(0, 0.2)), 5
                    ),
                    "num_utterances": int(self.num_utterances[k]),
                    "seconds": round(float(self.num_utterances[k] * 6.8), 2),
                }
                for k, loss, weight in zip(answered, losses, weights, strict=True)
            },
            "failures": {
                self.clients[k]: reasons[int(k) % len(reasons)]
                for k in drawn
                if k not in set(answered.tolist())
            },
            "loss": round(float((losses * weights).sum()), 5),
            "bytes_down": 5_013_620 * len(drawn),
            "bytes_up": 5_013_620 * len(answered),
            "metrics": {"client_lr": 0.05, "server_lr": 1.0},
        }
        if self.validate_every and (number % self.validate_every == 0 or number == self.rounds):
            entry["valid"] = self.validation(number)
        return entry

    def tick(self, number: int) -> dict[str, Any]:
        train = 0.31 * self.cohort_size * self.random.lognormal(0, 0.06)
        valid = 2.1 if self.validate_every and number % self.validate_every == 0 else 0.0
        return {
            "round": number,
            "seconds": round(train + valid + 0.2, 4),
            "train_seconds": round(train, 4),
            "valid_seconds": valid,
            "rss_mib": round(812 + 6 * np.log1p(number) + self.random.normal(0, 1), 1),
            "gpu_mib": 2410.0 if self.gpu else 0.0,
        }

    def write_scores(self, folder: Path, split: str, which: str) -> None:
        people = np.random.default_rng(len(split))
        lengths = people.integers(120, 900, self.num_speakers)
        start = np.clip(people.gamma(5, 0.075, self.num_speakers), 0.05, 0.98)
        rates = start
        if which == "best":
            change = 1 - self.gain + self.random.normal(0, 0.09, self.num_speakers)
            rates = start * np.clip(change, 0.2, 1.25)
        speakers = {
            f"{1200 + 13 * k}": {
                "words": counts(rates[k], int(lengths[k])),
                "characters": counts(rates[k] * 0.31, int(lengths[k]) * 5),
                "num_utterances": int(lengths[k]) // 18 + 1,
            }
            for k in range(self.num_speakers)
        }
        scores = {
            "split": split,
            "which": which,
            "round": 0 if which == "start" else self.rounds,
            "num_utterances": sum(s["num_utterances"] for s in speakers.values()),
            "seconds": 31.5,
            "real_time_factor": 0.011,
            "words": total(s["words"] for s in speakers.values()),
            "characters": total(s["characters"] for s in speakers.values()),
            "speakers": speakers,
        }
        folder.mkdir(parents=True)
        (folder / "scores.json").write_text(json.dumps(scores), encoding="utf-8")


def counts(rate: float, length: int) -> dict[str, int]:
    errors = round(rate * length)
    deletions, insertions = errors // 6, errors // 9
    return {
        "substitutions": errors - deletions - insertions,
        "deletions": deletions,
        "insertions": insertions,
        "length": length,
    }


def total(many: Any) -> dict[str, int]:
    result = dict.fromkeys(("substitutions", "deletions", "insertions", "length"), 0)
    for one in many:
        for key, value in one.items():
            result[key] += value
    return result


def write_lines(path: Path, entries: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
