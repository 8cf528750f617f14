"""The folder of an exported model, and the comparison of its graphs with the run's model."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data import frontends
from antiphon.data.audio import SAMPLE_RATE
from antiphon.data.corpus import Corpus, Utterance
from antiphon.data.frontends import Filterbank, Frontend, OnnxEncoder
from antiphon.data.tokens import Characters, Tokens, Unigram
from antiphon.experiment.folder import corpus_of
from antiphon.experiment.runner import Progress
from antiphon.exporting import transcribe
from antiphon.exporting.graphs import Features, check_packages, graphs_of, kind_of, write_graph
from antiphon.models.las import Las
from antiphon.models.transducer import Transducer
from antiphon.recognizer import Recognizer
from antiphon.records.files import write_json
from antiphon.records.folders import files_in, new_folder
from antiphon.records.maker import tidy
from antiphon.report.formatting import percent
from antiphon.report.model_card import write_card
from antiphon.scoring.error_rate import Errors, word_errors

FORMAT = "antiphon-export/1"
QUANTISED = ["MatMul", "Gemm", "LSTM"]


@dataclass(frozen=True)
class ModelScore:
    """Word errors of a model, and the number of utterances with the same text as the run's model."""

    name: str
    errors: Errors
    num_same: int


@dataclass(frozen=True)
class Exported:
    """An exported model: its folder, the bytes of each file, and scores on `num_utterances` utterances."""

    folder: Path
    sizes: dict[str, int]
    comparison: tuple[ModelScore, ...]
    num_utterances: int


def export(
    run: str | Path,
    out: str | Path,
    *,
    int8: bool = False,
    data: str | Path | None = None,
    split: str = "test",
    progress: Progress = lambda stage, done, total: None,
) -> Exported:
    """Write a run's model as ONNX files, with all that is needed to recognise speech with them.

    The folder has the graphs, tokens.txt, the settings of the front end (export.json), a script that
    recognises recordings with numpy and onnxruntime (transcribe.py), and a model card (README.md). Hugging
    Face models are refused.

    Args:
        run: The folder of a finished run, such as out/dga.
        out: The folder to write; it must be new or empty.
        int8: Write quantised copies of the graphs, too: weights of 8 bits.
        data: A corpus to compare the exported model with the run's model on; by default the corpus that the
            run was trained on, if it is still there.
        split: The split of the corpus to compare on. If it is empty, nothing is compared.
        progress: A function that is called with (stage, steps done, number of steps).

    Returns:
        The files, and the errors of the run's model and of the exported models on the split.

    Example:
        exported = antiphon.export("out/dga", "exported", int8=True)
        print([(row.name, row.errors.rate) for row in exported.comparison])
    """
    run, out = Path(run), Path(out)
    tidy(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not empty: choose another folder")
    check_packages()
    recognizer = Recognizer.load(run)
    settings = describe(recognizer)
    corpus = open_corpus(run, Path(data) if data is not None else None) if split else None
    utterances = utterances_of(corpus, split) if corpus is not None else []
    comparison: tuple[ModelScore, ...] = ()
    rows: list[Sequence[str]] = []
    with new_folder(out) as folder:
        write_folder(recognizer, settings, folder, int8, progress)
        if corpus is not None:
            comparison = compare(recognizer, folder, int8, corpus, utterances, partial(progress, "compare"))
            rows = [("model", "WER %", f"same text, of {len(utterances):,}")]
            rows += [(row.name, percent(row.errors.rate), f"{row.num_same:,}") for row in comparison]
        write_card(run, folder, rows)
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    return Exported(out, sizes, comparison, len(utterances))


def utterances_of(corpus: Corpus, split: str) -> list[Utterance]:
    """Return the utterances of a split; refuse an empty one."""
    utterances = [utterance for utterance in corpus.utterances() if utterance.split == split]
    if not utterances:
        raise ValueError(f"{corpus.path} has no split {split!r} to compare on: name another with --split")
    return utterances


def open_corpus(run: Path, data: Path | None) -> Corpus | None:
    """Open the corpus to compare on; None if the run's own corpus is not there any more."""
    if data is not None:
        return Corpus.open(data)
    source = corpus_of(run)
    return Corpus.open(source) if source is not None and (source / "corpus.json").exists() else None


def describe(recognizer: Recognizer) -> dict[str, Any]:
    """Return the contents of export.json; refuse what cannot be exported."""
    model = recognizer.model
    settings: dict[str, Any] = {"format": FORMAT, "kind": kind_of(model), "sample_rate": SAMPLE_RATE}
    settings["tokens"] = kind_of_tokens(recognizer.tokens)
    settings["frontend"] = describe_frontend(recognizer.blueprint.frontend)
    if isinstance(model, Transducer):
        sizes = {"context": model.config.context, "symbols_per_frame": model.config.symbols_per_frame}
    elif isinstance(model, Las):
        sizes = {"decoder_layers": model.config.decoder_layers, "decoder_dim": model.config.decoder_dim}
    else:
        sizes = {}
    return settings | sizes


def describe_frontend(frontend: Frontend) -> dict[str, Any]:
    """Return the settings of a front end that transcribe.py can compute."""
    if isinstance(frontend, Filterbank):
        return {
            "kind": "filterbank",
            "dim": frontend.dim,
            "window": frontends.WINDOW,
            "hop": frontends.HOP,
            "fft_size": frontends.FFT_SIZE,
            "preemphasis": frontends.PREEMPHASIS,
            "lowest_hertz": frontends.LOWEST_HERTZ,
            "highest_hertz": SAMPLE_RATE / 2,
            "log_floor": frontends.LOG_FLOOR,
            "scale": 32768.0,
            "normalised_in_graph": frontend.normalise,
        }
    if encoder := encoder_of(frontend):
        return {"kind": "onnx", "dim": encoder.dim, "file": f"frontend{Path(encoder.path).suffix}"}
    raise ValueError(
        f"the front end {type(frontend).__name__} cannot be exported: antiphon exports models with a "
        "filterbank or with an encoder in an ONNX file"
    )


def encoder_of(frontend: Frontend) -> OnnxEncoder | None:
    """Return the ONNX encoder that a front end is or has."""
    encoder = getattr(frontend, "encoder", frontend)
    return encoder if isinstance(encoder, OnnxEncoder) else None


def kind_of_tokens(tokens: Tokens) -> str:
    if isinstance(tokens, Characters):
        return "characters"
    if isinstance(tokens, Unigram):
        return "pieces"
    raise ValueError(
        f"tokens of the kind {type(tokens).__name__} cannot be exported: antiphon exports characters and "
        "SentencePiece pieces"
    )


def symbols_of(tokens: Tokens) -> list[str]:
    """Return the symbols of tokens in the order of their ids; "▁" is a space."""
    if isinstance(tokens, Characters):
        return ["<blk>", "<unk>", *tokens.characters.replace(" ", transcribe.SPACE)]
    assert isinstance(tokens, Unigram)
    return ["<blk>", "<unk>", *tokens.pieces[2:]]


def write_folder(
    recognizer: Recognizer, settings: dict[str, Any], folder: Path, int8: bool, progress: Progress
) -> None:
    """Write the graphs, the tokens, the front end and the script."""
    frontend = recognizer.blueprint.frontend
    features = Features(frontend.dim, isinstance(frontend, Filterbank) and frontend.normalise)
    graphs = graphs_of(recognizer.model, features, recognizer.tokens.size)
    steps = len(graphs) * (1 + int8)
    for number, (name, graph) in enumerate(graphs.items()):
        write_graph(graph, folder / f"{name}.onnx")
        progress("export", number + 1, steps)
    if int8:
        for number, name in enumerate(graphs, len(graphs) + 1):
            quantise(folder / f"{name}.onnx", folder / f"{name}.int8.onnx")
            progress("export", number, steps)
    if encoder := encoder_of(frontend):
        shutil.copyfile(encoder.path, folder / settings["frontend"]["file"])
    lines = [f"{symbol} {id}\n" for id, symbol in enumerate(symbols_of(recognizer.tokens))]
    (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")
    shutil.copyfile(transcribe.__file__, folder / "transcribe.py")
    write_json(folder / "export.json", settings | {"graphs": list(graphs)}, files_in(folder))


def quantise(source: Path, target: Path) -> None:
    """Write a copy of a graph whose matrices have 8 bits; activations are quantised while it runs."""
    from google.protobuf.message import DecodeError
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # the advice to optimise first: torch.onnx has done so
    try:
        quantize_dynamic(source, target, op_types_to_quantize=QUANTISED, weight_type=QuantType.QInt8)
    except DecodeError as error:  # of a copy that onnx has just written: it does not notice a full disk
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
    finally:
        logging.disable(logging.NOTSET)


def compare(
    recognizer: Recognizer,
    folder: Path,
    int8: bool,
    corpus: Corpus,
    utterances: list[Utterance],
    progress: Callable[[int, int], None],
) -> tuple[ModelScore, ...]:
    """Recognise utterances with the run's model and with the exported ones, from their audio."""
    models: dict[str, Callable[[np.ndarray], str]] = {"PyTorch": recognizer.transcribe}
    models["ONNX float32"] = transcribe.Transcriber(folder).transcribe
    if int8:
        models["ONNX int8"] = transcribe.Transcriber(folder, int8=True).transcribe
    errors = dict.fromkeys(models, Errors())
    num_same = dict.fromkeys(models, 0)
    for number, utterance in enumerate(utterances, 1):
        samples = corpus.read_audio(utterance)
        texts = {name: recognise(samples) for name, recognise in models.items()}
        for name, text in texts.items():
            errors[name] += word_errors(utterance.text, text)
            num_same[name] += text == texts["PyTorch"]
        progress(number, len(utterances))
    return tuple(ModelScore(name, errors[name], num_same[name]) for name in models)
