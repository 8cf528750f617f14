"""Seconds of a round with wav2vec2, as large as those of a published baseline. For a GPU.

    python benchmarks/wav2vec2_round.py --precisions bfloat16

Flower's baseline fedwav2vec2 (Nguyen et al., ICASSP 2023; TED-LIUM 3) says that a round takes 20 to 40
minutes on an RTX 3090 Ti: 20 clients, 20 epochs on utterances of up to 10 s, batches of four, wav2vec2-large
(317 million parameters). Its speakers have 14 minutes of speech on average, 80 % of it for training. Here a
round has as many clients, epochs, steps and seconds of audio. The model is wav2vec2-base (95 million), with
random weights and noise for speech, which change no time. Training only: no validation.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import TOKENS, argument_parser, make_store, print_table, write_result

from antiphon.algorithms.fedavg import FedAvg
from antiphon.clients.client import ClientRuntime
from antiphon.clients.precision import PRECISIONS
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.worker import SpeechWorker
from antiphon.data.huggingface_folder import WAVE_FRAME, library
from antiphon.data.partition import BySpeaker
from antiphon.data.store import FeatureStore
from antiphon.experiment.preparation import choose_device, device_name
from antiphon.models.huggingface.speech_models import HuggingFaceConfig
from antiphon.pools.local import LocalPool
from antiphon.tasks.local_training import LocalTraining

PUBLISHED = "20 to 40 minutes on an RTX 3090 Ti, 317 million parameters (Flower's fedwav2vec2)"


@dataclass(frozen=True)
class Size:
    """A round: as many clients and epochs as the baseline, and about as much speech."""

    num_clients: int = 20
    num_utterances: int = 112
    seconds: tuple[float, float] = (2.0, 10.0)  # 6 on average: 11 minutes a client
    epochs: int = 20
    batch_seconds: float = 24.0  # four utterances
    hidden: int = 768
    layers: int = 12
    heads: int = 12


QUICK = Size(2, 2, (0.3, 0.5), 1, 1.0, 32, 1, 2)


def write_model(size: Size, folder: Path) -> None:
    """Write the description of a model, without weights: they are drawn when it is built."""
    sizes = {"hidden_size": size.hidden, "num_hidden_layers": size.layers, "num_attention_heads": size.heads}
    library().Wav2Vec2Config(**sizes, intermediate_size=4 * size.hidden).save_pretrained(folder)


def measure(
    size: Size, folder: Path, store: FeatureStore, precision: str, device: torch.device
) -> dict[str, Any]:
    """Time a round after one of a single step, which loads kernels."""
    torch.manual_seed(0)
    model = HuggingFaceConfig(str(folder), fresh_output=True).build(store.dim, TOKENS.size)
    params = {name: p.detach().clone().to(device) for name, p in model.named_parameters()}
    speakers = dict(BySpeaker()(store, np.arange(len(store)), 0))
    runtime = ClientRuntime(store, TOKENS, model, params, None, device, precision)
    kind = StackedWorker if device.type == "cuda" else SpeechWorker
    pool = LocalPool(kind(runtime, speakers))
    local = LocalTraining(lr=0.01, epochs=size.epochs, batch_seconds=size.batch_seconds)
    seconds = 0.0
    for training in (LocalTraining(lr=0.01, steps=1, batch_seconds=size.batch_seconds), local):
        algorithm = FedAvg(training)
        began = time.perf_counter()
        after, _ = algorithm.round(algorithm.init(params), list(speakers), pool)
        float(next(iter(after.params.values())).sum())  # waits for the GPU
        seconds = time.perf_counter() - began
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
    audio = float(store.seconds.sum()) * size.epochs
    return {
        "precision": precision,
        "num_parameters": sum(p.numel() for p in params.values()),
        "seconds": seconds,
        "seconds_of_audio": audio,
        "times_real_time": audio / seconds,
        "gpu_gib": memory,
    }


def main() -> None:
    parser = argument_parser(__doc__, "wav2vec2_round")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=["float32"])
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    size, device, rows = QUICK if arguments.quick else Size(), choose_device(arguments.device), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(size, folder / "wav2vec2")
        shape = (size.num_clients, size.num_utterances, size.seconds, WAVE_FRAME, WAVE_FRAME)
        store = make_store(folder / "corpus", *shape)
        rows = [measure(size, folder / "wav2vec2", store, one, device) for one in arguments.precisions]
    names = ["precision", "seconds", "times_real_time", "gpu_gib"]
    lines = [[row["precision"], *(f"{row[name]:.1f}" for name in names[1:])] for row in rows]
    print_table(["precision", "seconds of a round", "× real time", "GPU, GiB"], lines)
    print(f"published: {PUBLISHED}")
    result = {"settings": asdict(size), "device": device_name(device), "published": PUBLISHED, "rows": rows}
    write_result(arguments, result, "--precisions", *arguments.precisions)


if __name__ == "__main__":
    main()
