"""FedAvg with and without the clipping of `median_norm.py`, from one seed model, on the demo's corpus."""

from __future__ import annotations

from dataclasses import replace

from median_norm import MedianNorm

from antiphon.decoding.error_rate import Errors
from antiphon.local import LocalTraining
from antiphon.recipes.demo import demo
from antiphon.recipes.experiment import Run
from antiphon.recipes.launch import run_experiment

experiment = demo()
seed, fedavg = experiment.runs["seed"], experiment.runs["fedavg"]
clipped = Run(MedianNorm(LocalTraining(lr=0.5, batch_seconds=16.0)), rounds=fedavg.rounds)
runs = {"seed": seed, "fedavg": fedavg, "median-norm": clipped}
scores = run_experiment(replace(experiment, runs=runs), data="demo/corpus", out="median")
for name, score in scores.items():
    print(f"{name:<12} WER {100 * Errors(**score['words']).rate:.1f} %")
