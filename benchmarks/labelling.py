"""How fast a teacher labels speech, how good its labels are, and which measure of confidence to trust.

    antiphon run self-training --data CORPUS --out out --only seed --set frontend.path=ENCODER.onnx
    python benchmarks/labelling.py out --runs hard lm

The teacher is the experiment's run `seed`; it labels as the given runs say, and greedily. It hears the
held-out speakers, by whom settings are chosen, and the clients of one round, whose transcripts are withheld
from it: they are read here to count errors, and by nothing else. A measure of confidence is judged by the
errors in the half (or more, or less) of the utterances that it trusts most.

Labels are made once a client, and again when the teacher changes. Their share is of a round in which all of a
cohort make labels and train on them as the first of the runs does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import argument_parser, print_table, write_result

from antiphon import config
from antiphon.algorithms.self_training import SelfTrained
from antiphon.clients.client import ClientRuntime
from antiphon.clients.labeller import Labeller, open_teacher, recognise
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Task
from antiphon.experiment.preparation import Prepared, prepare
from antiphon.experiment.settings import Experiment, Run
from antiphon.experiment.starting import load_start
from antiphon.experiment.teaching import resolve_labels
from antiphon.pools.local import LocalPool
from antiphon.pools.process_group import SingleProcess
from antiphon.records.reading import read_object
from antiphon.scoring.error_rate import word_errors
from antiphon.server.run_context import RunContext
from antiphon.server.run_context import prepare as prepare_algorithm
from antiphon.tasks.pseudo_labels import (
    Labelling,
    LowEntropy,
    SentenceProbability,
    TeacherInstruction,
    TokenProbability,
    TopPosterior,
)

MEASURES = {
    "sentence_probability": SentenceProbability(threshold=0.0),
    "token_probability": TokenProbability(threshold=0.0),
    "top_posterior": TopPosterior(threshold=0.0),
    "low_entropy": LowEntropy(threshold=0.0),
}
SHARES = (1.0, 0.9, 0.75, 0.5, 0.25)  # of the utterances, the most trusted


@dataclass(frozen=True)
class Heard:
    """Labels of some utterances: errors and words [N, 2] of the best hypotheses, confidences [N]."""

    counts: np.ndarray
    confidences: Mapping[str, np.ndarray]
    seconds: float  # of speech
    took: float

    def to_json(self) -> dict[str, Any]:
        return {
            "wer": self.rate(np.arange(len(self.counts))),
            "times_real_time": self.seconds / self.took,
            "trusted": {name: self.trusted(found) for name, found in self.confidences.items()},
        }

    def trusted(self, confidences: np.ndarray) -> list[dict[str, float]]:
        """What is left by thresholds that keep these shares of the utterances, and its error rate."""
        order = np.argsort(-confidences, kind="stable")
        kept = [order[: max(1, round(share * len(order)))] for share in SHARES]
        return [
            {"share": share, "least": float(confidences[best[-1]]), "wer": self.rate(best)}
            for share, best in zip(SHARES, kept, strict=True)
        ]

    def rate(self, chosen: np.ndarray) -> float:
        errors, words = self.counts[chosen].sum(axis=0)
        return float(errors / max(1, words))


@dataclass(frozen=True)
class Study:
    """A finished seed, and runs whose clients have no transcripts; the clients are those of the first."""

    prepared: Prepared
    taught: Mapping[str, SelfTrained]
    clients: Mapping[str, np.ndarray]
    cohort: list[str]
    runtime: ClientRuntime

    @classmethod
    def open(cls, out: Path, names: Sequence[str], data: Path | None, device: str) -> Study:
        about = read_object(out / "experiment.json")
        experiment = config.from_dict(Experiment, about["config"])
        runs, first = {name: experiment.runs[name] for name in ("seed", *names)}, names[0]
        # A CPU cannot train in 16 bits, and labels are not made in them anywhere.
        experiment = replace(experiment, runs=runs, precision="float32")
        prepared = prepare(experiment, data or Path(about["data"]), device)
        params = load_start(Run(start_run="seed"), out, prepared.fresh[first])["params"]
        model, store = prepared.recognizer(first).model, prepared.store_of(first)
        runtime = ClientRuntime(store, prepared.tokens, model, params, experiment.augment, prepared.device)
        clients = prepared.clients[first]
        cohort = sorted(clients)[: runs[first].rounds.cohort]
        return cls(prepared, {name: taught(prepared, name, out) for name in names}, clients, cohort, runtime)

    def ways(self) -> dict[str, Labelling]:
        """How speech is labelled, by the run that does it so."""
        return {"greedy": Labelling(num_hypotheses=1, width=1)} | {
            name: run.labels for name, run in self.taught.items()
        }

    def hear(self, indices: np.ndarray, labelling: Labelling) -> Heard:
        """What the seed makes of these utterances, beside their transcripts."""
        runtime, store, truth = self.runtime, self.runtime.store, self.prepared.store
        teacher = open_teacher(TeacherInstruction(labelling), runtime)
        runtime.load({})  # the seed, whatever was trained here before
        began = time.perf_counter()
        lists = list(recognise(teacher, runtime, indices, labelling))
        took = time.perf_counter() - began
        errors = [word_errors(truth.text(index), own[0].text if own else "") for index, own in lists]
        labeller = Labeller(runtime)
        settings = {name: replace(labelling, confidence=measure) for name, measure in MEASURES.items()}
        confidences = {
            name: np.array(
                [labeller.transcripts(found, int(store.num_frames[i]), own)[1] for i, found in lists]
            )
            for name, own in settings.items()
        }
        counts = np.array([(each.total, each.length) for each in errors])
        return Heard(counts, confidences, float(store.seconds[indices].sum()), took)

    def training_seconds(self) -> float:
        """How long a round of the first run takes once its clients have labels."""
        algorithm, worker = next(iter(self.taught.values())), SpeechWorker(self.runtime, self.clients)
        for name in self.cohort:
            worker.enter(TeacherInstruction(algorithm.labels).add_to(Task("train")), name)
        began = time.perf_counter()
        algorithm.round(algorithm.init(self.runtime.base), self.cohort, LocalPool(worker))
        return time.perf_counter() - began


def taught(prepared: Prepared, name: str, out: Path) -> SelfTrained:
    """The algorithm of a run, with a language model that can be opened."""
    (out / name).mkdir(exist_ok=True)  # n-grams of the server's texts are written there
    algorithm = prepared.experiment.runs[name].algorithm
    resolve = partial(resolve_labels, out, out / name, SingleProcess(), prepared.server_texts)
    valid = tuple(sorted(prepared.valid_clients))
    found = prepare_algorithm(algorithm, RunContext(valid=valid, resolve_labels=resolve))
    if not isinstance(found, SelfTrained):
        raise ValueError(f"nobody labels speech in run {name!r}")
    return found


def main() -> None:
    parser = argument_parser(__doc__, "labelling")
    parser.add_argument("experiment", type=Path, help="folder of an experiment whose run `seed` is finished")
    parser.add_argument("--runs", nargs="+", default=["hard", "lm"], help="whose labels")
    parser.add_argument("--data", type=Path, help="another corpus than the experiment's own")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    study = Study.open(arguments.experiment, arguments.runs, arguments.data, arguments.device)
    groups = {
        "heldout": study.prepared.groups["valid"],
        "clients": np.concatenate([study.clients[name] for name in study.cohort]),
    }
    every = 20 if arguments.quick else 1
    training = study.training_seconds()
    results: dict[str, Any] = {}
    for name, labelling in study.ways().items():
        heard = {group: study.hear(own[::every], labelling) for group, own in groups.items()}
        took = heard["clients"].took
        results[name] = {
            "labels": config.to_dict(labelling),
            "share_of_round": took / (took + training),
            **{group: each.to_json() for group, each in heard.items()},
        }
    tell(results)
    options = [arguments.experiment.name, "--runs", *arguments.runs]
    write_result(arguments, {"training_seconds": training, "ways": results}, *options)


def tell(results: Mapping[str, Any]) -> None:
    speeds = [
        [
            name,
            *(f"{100 * found[group]['wer']:.1f}" for group in ("heldout", "clients")),
            f"{found['clients']['times_real_time']:.0f}",
            f"{100 * found['share_of_round']:.0f} %",
        ]
        for name, found in results.items()
    ]
    print_table(["labels", "WER % held-out", "WER % clients", "× real time", "of a round"], speeds)
    print()
    filtered = [
        [name, measure, *(f"{100 * cell['wer']:.1f} (≥ {cell['least']:.2f})" for cell in cells)]
        for name, found in results.items()
        for measure, cells in found["heldout"]["trusted"].items()
    ]
    print_table(["labels", "confidence", *(f"{100 * share:.0f} % kept" for share in SHARES)], filtered)


if __name__ == "__main__":
    main()
