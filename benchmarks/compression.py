"""Bytes and errors of codecs on real updates: a small Conformer, trained on by clients.

    python benchmarks/compression.py

The clients are voices of the demo's synthesiser. Each codec encodes and decodes

- one update: the bytes that travel, and |decoded − update| / |update|;
- one update of each of several clients: the error of their mean;
- several updates of one client, one after another, with what the codec keeps: the error of their sum.

The bytes are measured before entropy coding, after it as antiphon does it (LZMA), by deflate, and by an ideal
coder that knows how often each byte occurs at each place of a number, and nothing else ("entropy").
"""

from __future__ import annotations

import math
import tempfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from client_updates import QUICK, Sizes, Speech, client_updates, make_speech, train_seed
from common import parse_arguments, print_table, write_result

from antiphon.algorithms.compressed import PackedAnswer
from antiphon.core import Report, Task, Tensors, Update, size_in_bytes
from antiphon.data.frontends import Filterbank
from antiphon.data.store import compute_features
from antiphon.data.tokens import CharactersConfig
from antiphon.data.tts.demo_corpus import SpeakerGroup, synthesise_corpus
from antiphon.tasks import packing
from antiphon.tasks.codec import Codec
from antiphon.tasks.codecs.low_rank import LowRank
from antiphon.tasks.codecs.random_projection import RandomProjection
from antiphon.tasks.codecs.stochastic_rounding import StochasticRounding
from antiphon.tasks.codecs.top_k import TopK

NUM_SEED, NUM_CLIENTS = 12, 10  # speakers
CODECS: dict[str, Codec] = {
    "int8": StochasticRounding(bits=8),
    "int4": StochasticRounding(bits=4),
    "int4, buckets of 64": StochasticRounding(bits=4, bucket=64),
    "2 bits": StochasticRounding(bits=2),
    "2 bits, buckets of 64": StochasticRounding(bits=2, bucket=64),
    "top_k 10 %": TopK(share=0.1),
    "top_k 5 %": TopK(share=0.05),
    "top_k 1 %": TopK(share=0.01),
    "low_rank 8": LowRank(rank=8),
    "low_rank 4": LowRank(rank=4),
    "low_rank 1": LowRank(rank=1),
    "random_projection 25 %": RandomProjection(share=0.25),
    "random_projection 5 %": RandomProjection(share=0.05),
}


@dataclass
class KeptByClient:
    """What a view asks of a client: its name and its state."""

    id: str
    state: dict[str, Any] = field(default_factory=dict)


def make_voices(folder: Path) -> Speech:
    """Return speech of the demo's synthesiser."""
    splits = {
        "pool": SpeakerGroup(NUM_SEED + NUM_CLIENTS),
        "heldout": SpeakerGroup(1),
        "test": SpeakerGroup(1),
    }
    corpus = synthesise_corpus(folder, splits, 20, seed=0)
    store = compute_features(corpus, Filterbank())
    names = sorted(store.speakers("pool"))
    of = {name: store.where("pool", [name]) for name in names}
    seed = np.sort(np.concatenate([of[name] for name in names[:NUM_SEED]]))
    sessions = {name: (of[name], of[name]) for name in names[NUM_SEED:]}
    return Speech(store, CharactersConfig().fit([], corpus.alphabet), seed, sessions)


def make_updates(speech: Speech, sizes: Sizes) -> tuple[list[Tensors], list[Tensors]]:
    """Return one update of each client, and as many of the first client."""
    model, params = train_seed(speech, sizes, seed=0)
    clients = {name: sessions[0] for name, sessions in speech.sessions.items()}
    first = dict(list(clients.items())[:1])
    of_all = list(client_updates(speech, model, params, "full", clients, seed=0))
    of_one = [next(client_updates(speech, model, params, "full", first, seed=n)) for n in range(len(of_all))]
    return of_all, of_one


def travel(codec: Codec, updates: Sequence[Tensors], clients: Sequence[KeptByClient]) -> list[Tensors]:
    """Return what arrives of updates that clients send one after another."""
    view, arrived = PackedAnswer(codec, seed=0), []
    for round, (tensors, client) in enumerate(zip(updates, clients, strict=True)):
        task = Task("train", config={"round": round, "call": 0})
        update = Update(tensors, reports=(Report(client.id, {}),))
        sent, client.state = view.after(task, client, (update, {}))
        arrived.append(view.decode(sent, task, tensors).mean)
    return arrived


def total(updates: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([update[name] for update in updates]).sum(dim=0) for name in updates[0]}


def error(found: Tensors, wanted: Tensors) -> float:
    """Return |found − wanted| / |wanted|."""
    squares = [[float(t.double().square().sum()) for t in (found[n] - w, w)] for n, w in wanted.items()]
    return math.sqrt(sum(gap for gap, _ in squares) / sum(size for _, size in squares))


def coded_sizes(codec: Codec, update: Tensors) -> dict[str, float]:
    """Return the bytes of an encoded update, by several ways of entropy coding."""
    rows = [codec.encode(update[name], seed=0, kept=None)[0] for name in sorted(update)]
    plain = packing.joined(rows)
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    planes = [plane for c in columns for plane in c.view(np.uint8).reshape(-1, c.dtype.itemsize).T]
    return {
        "plain": len(plain),
        "entropy": sum(entropy(plane) for plane in planes),
        "deflate": len(zlib.compress(plain, 9)),
        "lzma": len(packing.shortened(plain)),
    }


def entropy(plane: np.ndarray) -> float:
    """Return the bytes that an ideal coder takes for bytes that do not depend on each other."""
    counts = np.bincount(plane, minlength=256)
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / max(1, len(plane)))).sum() / 8)


def measure(codec: Codec, of_all: Sequence[Tensors], of_one: Sequence[Tensors]) -> dict[str, float]:
    update = of_all[0]
    began = time.perf_counter()
    data, _ = packing.pack(codec, update, seed=0)
    encoded = time.perf_counter()
    packing.unpack(codec, data, packing.shapes_of(update), seed=0)
    decoded = time.perf_counter()
    clients = [KeptByClient(str(number)) for number in range(len(of_all))]
    arrived = travel(codec, of_all, clients)
    one = [KeptByClient("one")] * len(of_one)
    return {
        "bytes": len(data),
        "share": len(data) / size_in_bytes(update),
        "error": error(arrived[0], update),
        "error_of_mean": error(total(arrived), total(of_all)),
        "error_of_sum": error(total(travel(codec, of_one, one)), total(of_one)),
        "encode_seconds": encoded - began,
        "decode_seconds": decoded - encoded,
        **coded_sizes(codec, update),
    }


def show(result: SimpleNamespace) -> None:
    rows = [
        [
            name,
            f"{row['bytes']:,}",
            f"{1 / row['share']:.1f}",
            *(f"{row[key]:.3f}" for key in ("error", "error_of_mean", "error_of_sum")),
        ]
        for name, row in result.codecs.items()
    ]
    print(f"{result.parameters:,} parameters: {result.bytes:,} bytes as 32-bit floats\n")
    errors = ["one update", f"mean of {result.clients} clients", f"sum of {result.clients} updates"]
    print_table(["codec", "bytes", "times fewer", *(f"error, {of}" for of in errors)], rows)
    print()
    keys = ("plain", "entropy", "deflate", "lzma")
    rows = [[name, *(f"{row[key]:,.0f}" for key in keys)] for name, row in result.codecs.items()]
    print_table(["codec", *keys], rows)


def main() -> None:
    arguments = parse_arguments(__doc__, "compression")
    with tempfile.TemporaryDirectory() as folder:
        make, sizes = (make_speech, QUICK) if arguments.quick else (make_voices, Sizes())
        of_all, of_one = make_updates(make(Path(folder) / "corpus"), sizes)
    result = {
        "sizes": vars(sizes),
        "clients": len(of_all),
        "parameters": sum(tensor.numel() for tensor in of_all[0].values()),
        "bytes": size_in_bytes(of_all[0]),
        "codecs": {name: measure(codec, of_all, of_one) for name, codec in CODECS.items()},
    }
    show(SimpleNamespace(**result))
    write_result(arguments, result)


if __name__ == "__main__":
    main()
