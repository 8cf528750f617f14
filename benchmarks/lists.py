"""Best hypotheses of N-best lists over seeds: error rates, and how much better a model is than another.

    for seed in 0 1 2; do
      antiphon nbest out/$seed/student --lm LM … --out student-$seed.jsonl.gz    (and so on)
    done
    python benchmarks/lists.py teacher=teacher-*.jsonl.gz student=student-*.jsonl.gz --baseline teacher

Each argument is a name and the lists of one or more seeds. Means over seeds with 95 % intervals by Student's
t; relative changes of word errors with 95 % intervals over speakers (errors pooled over seeds, paired).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from glob import glob
from pathlib import Path

import numpy as np
from common import argument_parser, print_table, write_result
from seeds import error_rate, over_seeds

from antiphon.decoding.nbest import read_nbest
from antiphon.report.formatting import NONE, percent
from antiphon.scoring.error_rate import word_errors
from antiphon.scoring.statistics import relative_interval, signed

Speakers = dict[str, np.ndarray]  # speaker -> word errors, words


def errors_of(path: Path) -> Speakers:
    """Word errors of the best hypotheses, by speaker."""
    found: Speakers = {}
    for entry in read_nbest(path, depth=1):
        if entry.reference is None or entry.speaker is None:
            raise ValueError(f"{path}: {entry.id} has no reference, or no speaker: it cannot be scored")
        best = entry.hypotheses[0].text if entry.hypotheses else ""
        errors = word_errors(entry.reference, best)
        counts = np.array([errors.total, errors.length], dtype=float)
        found[entry.speaker] = found.get(entry.speaker, np.zeros(2)) + counts
    return found


def pooled(lists: Sequence[Speakers], speakers: Sequence[str]) -> np.ndarray:
    """[2, speakers]: word errors and words, summed over seeds."""
    return np.array([[one[speaker] for speaker in speakers] for one in lists]).sum(axis=0).T


def named(argument: str) -> tuple[str, list[Path]]:
    name, _, pattern = argument.partition("=")
    paths = [Path(path) for path in sorted(glob(pattern))]
    if not paths:
        raise argparse.ArgumentTypeError(f"{argument!r} is no NAME=LISTS, or there are no such files")
    return name, paths


def main() -> None:
    parser = argument_parser(__doc__, "lists")
    parser.add_argument("lists", nargs="+", type=named, metavar="NAME=LISTS", help="a pattern of files")
    parser.add_argument("--baseline", required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of the files, in order")
    args = parser.parse_args()
    given = dict(args.lists)
    if {len(paths) for paths in given.values()} != {len(args.seeds)}:
        parser.error(f"--seeds: give the seed of each file, not {' '.join(map(str, args.seeds))}")
    if args.baseline not in given:
        parser.error(f"no {args.baseline!r} among {', '.join(given)}")
    found = {name: [errors_of(path) for path in paths] for name, paths in given.items()}
    speakers = sorted(found[args.baseline][0])
    rows, cells = {}, []
    for name, lists in found.items():
        if any(sorted(one) != speakers for one in lists) or len(lists) != len(found[args.baseline]):
            parser.error(f"{name!r} and {args.baseline!r} have other speakers, or other numbers of lists")
        wer = over_seeds([errors / words for errors, words in (sum(one.values()) for one in lists)])
        relative = relative_interval(*(pooled(found[n], speakers)[0] for n in (name, args.baseline)))
        rows[name] = {"wer": wer, "relative_to_baseline": relative and vars(relative)}
        change = NONE if name == args.baseline or relative is None else signed(relative, 1)
        cells.append([name, error_rate(wer), " ".join(map(percent, wer["by_seed"])), change])
    print_table(["lists", "WER %", "by seed", f"relative to {args.baseline}, %"], cells)
    seeds = ["--seeds", *map(str, args.seeds)]
    options = [*(f"{name}=LISTS" for name in given), "--baseline", args.baseline, *seeds]
    write_result(args, {"baseline": args.baseline, "seeds": args.seeds, "lists": rows}, *options)


if __name__ == "__main__":
    main()
