"""Tables of Federated Marginal Personalization: error rates by rounds, settings and models, and under noise.

    python benchmarks/marginals.py WORK

WORK is a folder with N-best lists of meetings (lists.jsonl.gz) and of LibriSpeech (pocketsphinx.jsonl.gz,
moonshine_tiny.jsonl.gz), novels (books.tsv.gz, other-books.tsv.gz) and texts of meetings (meetings.jsonl.gz).
The commands of `MODELS` and `RUNS` run there, one after the other. What is there already is kept.

A row has the word error rate with an interval over clients, the relative change from the background model,
and p of the matched-pairs test. Under noise, a rate is the mean of its draws, and ε is that of `units`.
"""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import argument_parser, print_table, write_result
from marginal_perplexity import read_meetings

from antiphon.data.transcripts import read_sentences
from antiphon.lm.neural_lm import NeuralLm, load_sentence_model
from antiphon.personalisation.private_trial import PrivateRow
from antiphon.privacy.ledger import Claim
from antiphon.report.formatting import NONE, percent

MODELS = {
    "books": "lm ngram books.tsv.gz",
    "meetings": "lm ngram meetings.txt --order 3",
    "neural": "lm train books.tsv.gz --steps 4000 --batch-tokens 512",
}

MEETINGS = "personalize lists.jsonl.gz --split test --weight acoustic=0.1"
NOVELS = "--background books.tsv.gz --lm books"
HALF = "--weight lm=0.5 --weight books=0.5 --search words"
BOTH = "--tune heldout --tune pool"
PAPER = f"{MEETINGS} {NOVELS} {HALF} {BOTH}"
TUNED = f"{MEETINGS} {BOTH} --weight lm=1 --search lm"
RECOGNISER = f"{TUNED} --search words --background books.tsv.gz --adapt lm"
PRIVATE = f"{MEETINGS} {NOVELS} {HALF} --tune heldout --rounds 10 --alpha 0.5 --beta 0.25 --sigma 0.1"
SESSIONS = f"--client session {NOVELS} --rounds 10 --search books=0.1 --search words=0.5"
RUNS = {
    "paper": PAPER,
    "transformer": PAPER.replace("--lm books", "--lm neural").replace("books=0.5", "neural=0.5"),
    "beyond": f"{PAPER} --earlier heldout --earlier pool --every-utterance --agreement 4"
    " --alpha 0.5 --beta 0.25 --lambda 1.75 --sigma 0.1",
    "every-utterance": f"{PAPER} --every-utterance",
    "earlier": f"{MEETINGS} {NOVELS} {HALF} --tune heldout --earlier pool",
    "recogniser": RECOGNISER,
    "recogniser-every-utterance": f"{RECOGNISER} --every-utterance",
    "novels-tuned": f"{TUNED} --search books --search words {NOVELS}",
    "meetings": f"{MEETINGS} --tune heldout --search lm --search meetings --search words"
    " --background meetings.txt --lm meetings",
    "pocketsphinx": f"personalize pocketsphinx.jsonl.gz {SESSIONS} --weight rank=1 --search lm=0.1",
    "moonshine": f"personalize moonshine_tiny.jsonl.gz {SESSIONS} --weight score=1 --tune heldout"
    " --split test",
    "noise": f"{PRIVATE} --private paper=2,1,0.5,0.1 --private laplace=2 --private gaussian=2,1,0.5,0.1",
    "population": f"{PRIVATE} --private laplace=2 --private gaussian=2 --population 10,100,1000",
}
UNITS = {"word": "one word", "utterance": "one utterance", "client": "one client"}


def run(work: Path, name: str, command: str, made: str) -> None:
    """Run a command of antiphon in a folder, if what it makes is not there yet."""
    if not (work / name / made).exists():
        words = [sys.executable, "-m", "antiphon", *shlex.split(command), "--out", name]
        subprocess.run(words, cwd=work, check=True)


def write_meetings(work: Path) -> None:
    """Write the texts of the meetings that no list is of."""
    if not (work / "meetings.txt").exists():
        others = [entry for entry in read_meetings(work / "meetings.jsonl.gz") if entry.split == "pool"]
        (work / "meetings.txt").write_text("".join(f"{each.hypotheses[0].text}\n" for each in others))


def measure_model(work: Path, name: str) -> dict[str, Any]:
    """Return a model's perplexity on other novels, its share of unknown words, and a Transformer's size."""
    model: Any = load_sentence_model(work / name)
    found: dict[str, Any] = {"command": f"antiphon {MODELS[name]}"}
    if isinstance(model, NeuralLm):
        found["parameters"] = sum(parameter.numel() for parameter in model.model.parameters())
    perplexity = model.perplexity(list(read_sentences(work / "other-books.tsv.gz")))
    return found | {"perplexity": perplexity.value, "unknown": perplexity.num_unknown / perplexity.num_words}


def read(folder: Path) -> dict[str, Any]:
    """Return the figures of a run, and the clients that gain and lose, with their changes of WER."""
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    clients = found.pop("clients")
    changes = {name: (one["after"] - one["before"]) / one["words"] for name, one in clients.items()}
    kept = {key: found[key] for key in ("weights", "adapted", "mixture", "agreement", "schedule")}
    figures = {
        **kept,
        "rows": [row_of(row) for row in found["rows"]],
        "clients": len(changes),
        "better": sum(change < 0 for change in changes.values()),
        "worse": sum(change > 0 for change in changes.values()),
        "changes": changes,
    }
    if (folder / "private.json").is_file():
        figures["noise"] = noise_of(json.loads((folder / "private.json").read_text()))
    return figures


def row_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rate of a row, the ends of its interval, the change with its interval, and p."""
    wer, change = row["wer"], row["change"]
    return {
        "name": row["name"],
        "rate": row["rate"],
        "wer": wer and [wer["low"], wer["high"]],
        "change": change and [change["estimate"], change["low"], change["high"]],
        "p": row["test"]["p"],
    }


def noise_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return error rates under noise: the mean of the draws, the share of the gain that is left, and ε."""
    background, no_noise, own_words = (found[key] for key in ("background", "no_noise", "own_words"))
    gain, rows = background - no_noise, []
    for row in found["rows"]:
        claims = tuple(claim_of(claim) for claim in row["claims"])
        own = PrivateRow(row["name"], row["epsilon"], row["population"], tuple(row["rates"]), claims)
        best = {unit: own.best(name) for unit, name in UNITS.items()}
        rows.append(
            {
                **{key: row[key] for key in ("name", "epsilon", "population", "rates")},
                "rate": own.rate,
                "gain_kept": (background - own.rate) / gain if gain else None,
                "units": {
                    unit: claim.epsilon if claim.epsilon < math.inf else None for unit, claim in best.items()
                },
            }
        )
    kept = (background - own_words) / gain if gain else None
    rates = {"background": background, "no_noise": no_noise, "own_words": own_words}
    return {**rates, "own_words_gain_kept": kept, "seeds": list(range(len(rows[0]["rates"]))), "rows": rows}


def claim_of(found: Mapping[str, Any]) -> Claim:
    """Return a claim of private.json, in which an infinite ε is None."""
    return Claim(**{**found, "epsilon": math.inf if found["epsilon"] is None else found["epsilon"]})


def span(interval: Sequence[float] | None, sign: str = "") -> str:
    return NONE if interval is None else " [{}, {}]".format(*(f"{100 * end:{sign}.2f}" for end in interval))


def show(name: str, found: Mapping[str, Any]) -> None:
    print(f"\n{name}: {found['better']} of {found['clients']} clients gain, {found['worse']} lose\n")
    rows = []
    for row in found["rows"]:
        change = row["change"]
        relative = NONE if change is None else f"{100 * change[0]:+.2f}{span(change[1:], '+')}"
        rows.append([row["name"], percent(row["rate"]) + span(row["wer"]), relative, f"{row['p']:.2g}"])
    print_table(["", "WER %", "relative change %", "p"], rows)
    if "noise" in found:
        noise = found["noise"]
        print(f"\nno noise {percent(noise['no_noise'])} %, own words alone {percent(noise['own_words'])} %\n")
        head = ["noise", "ε", "population", "WER %", "draws", "gain kept %"]
        print_table(head, [noise_cells(row) for row in noise["rows"]])


def noise_cells(row: Mapping[str, Any]) -> list[str]:
    rates = [percent(row["rate"]), " ".join(map(percent, row["rates"]))]
    return [row["name"], f"{row['epsilon']:g}", str(row["population"]), *rates, percent(row["gain_kept"], 0)]


def main() -> None:
    parser = argument_parser(__doc__, "marginals")
    parser.add_argument("work", type=Path, metavar="WORK", help="folder of lists, texts, models and runs")
    parser.add_argument(
        "--only", nargs="+", default=list(RUNS), choices=RUNS, metavar="RUN", help="some runs alone"
    )
    arguments = parser.parse_args()
    work, runs = arguments.work, {}
    models = [name for name in MODELS if any(f"--lm {name}" in RUNS[run] for run in arguments.only)]
    if "meetings" in models:
        write_meetings(work)
    for name in models:
        run(work, name, MODELS[name], "")
    for name in arguments.only:
        run(work, f"run-{name}", RUNS[name], "results.json")
        runs[name] = {"command": f"antiphon {RUNS[name]}", **read(work / f"run-{name}")}
        show(name, runs[name])
    result = {"models": {name: measure_model(work, name) for name in models}, "runs": runs}
    only = ["--only", *runs] if len(runs) < len(RUNS) else []
    write_result(arguments, result, "WORK", *only)


if __name__ == "__main__":
    main()
