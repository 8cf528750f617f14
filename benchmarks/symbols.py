"""What a transducer's beam gains by several symbols a frame, beside greedy decoding, and what it costs.

    python benchmarks/symbols.py out/speech-transducer/central --lm books

Every row is one run's model, on some of the held-out speakers' speech, with as many symbols a frame at most.
Weights of the language model are those given, the same in all rows. Real-time factors are of one thread.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import argument_parser, print_table, write_result
from decoding import greedy, name_of

from antiphon.decoding.fusion import Fusion
from antiphon.decoding.rescoring import tabulate
from antiphon.decoding.tuning import Ranking
from antiphon.lm.arpa import load_ngram
from antiphon.models.transducer import Transducer
from antiphon.workflows.run_decoder import RunDecoder

SYMBOLS = (1, 2, 4)


def measure(decoder: RunDecoder, indices: np.ndarray, width: int, fusion: Fusion | None) -> dict[str, Any]:
    """Word error rates, and seconds for a second of speech."""
    seconds = float(decoder.store.seconds[indices].sum())
    began = time.perf_counter()
    errors = greedy(decoder, indices)
    taken = time.perf_counter() - began
    found = {"greedy": {"wer": errors.rate, "real_time_factor": taken / seconds}}
    for name, ranking in {"beam": Ranking(), **({"ngram": Ranking(fusion)} if fusion else {})}.items():
        began = time.perf_counter()
        entries = list(decoder.nbest(indices, width, ranking))
        taken = time.perf_counter() - began
        lists = tabulate(entries, {})
        best, oracle = (lists.count(rows).rate for rows in (lists.first(), lists.oracle()))
        found[name] = {"wer": best, "oracle": oracle, "real_time_factor": taken / seconds}
    return found


def main() -> None:
    parser = argument_parser(__doc__, "symbols")
    parser.add_argument("run", type=Path, help="the folder of a finished run with a transducer")
    parser.add_argument("--lm", type=Path, help="an n-gram model for the search")
    parser.add_argument("--lm-weight", type=float, default=0.75)
    parser.add_argument("--word-bonus", type=float, default=3.0)
    parser.add_argument("--data", type=Path, help="another corpus than the run's own")
    parser.add_argument("--split", default="heldout")
    parser.add_argument("--minutes", type=float, default=20.0, help="of speech, about")
    parser.add_argument("--width", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    decoder = RunDecoder.open(arguments.run, arguments.data, "cpu")
    weights = arguments.lm_weight, arguments.word_bonus
    fusion = Fusion(load_ngram(arguments.lm), *weights) if arguments.lm else None
    indices = decoder.store.where(split=arguments.split)
    speech = float(decoder.store.seconds[indices].sum())
    indices = indices[:: max(1, round(speech / 60 / (0.1 if arguments.quick else arguments.minutes)))]
    model = decoder.recognizer.model
    if not isinstance(model, Transducer):
        raise ValueError(f"{arguments.run}: a {type(model).__name__} does not count symbols a frame")
    results, config = {}, model.config
    for symbols in SYMBOLS:
        model.config = replace(config, symbols_per_frame=symbols)
        results[str(symbols)] = measure(decoder, indices, arguments.width, fusion)
    seconds = float(decoder.store.seconds[indices].sum())
    about = {"seconds": seconds, "width": arguments.width, "weights": weights}
    options = [
        name_of(arguments.run),
        *([f"--lm {arguments.lm.name}"] if fusion else []),
    ]
    write_result(arguments, {**about, "symbols": results}, *options)
    ways = list(results["1"])
    header = ["symbols a frame", *(f"{way} WER % (real-time factor)" for way in ways)]
    print_table(
        header,
        [
            [name, *(f"{100 * found[w]['wer']:.1f} ({found[w]['real_time_factor']:.3f})" for w in ways)]
            for name, found in results.items()
        ],
    )


if __name__ == "__main__":
    main()
