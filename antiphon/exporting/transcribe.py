"""Recognise recordings with an exported model: python transcribe.py RECORDING.wav …

This file needs numpy and onnxruntime, and nothing else for WAV files at 16 kHz. Other files need soundfile,
and other sample rates soxr. The folder of this file holds the graphs, tokens.txt and export.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE_RATE = 16000
BLANK, UNKNOWN = 0, 1
SPACE, UNKNOWN_TEXT = "\u2581", "\u2047"  # a space in tokens.txt; the text of an unknown token
Array = Any  # np.ndarray


class Transcriber:
    """An exported model: Transcriber("folder").transcribe(samples)."""

    def __init__(self, folder: str | Path, int8: bool = False) -> None:
        self.folder = Path(folder)
        self.settings = read_settings(self.folder)
        self.symbols = read_symbols(self.folder / "tokens.txt")
        suffix = ".int8.onnx" if int8 else ".onnx"
        self.graphs = {name: open_graph(self.folder / f"{name}{suffix}") for name in self.settings["graphs"]}
        frontend = self.settings["frontend"]
        self.encoder = open_graph(self.folder / frontend["file"]) if frontend["kind"] == "onnx" else None

    def transcribe(self, samples: Array) -> str:
        """Return the text of samples at 16 kHz, mono, float32 between −1 and 1."""
        if len(samples) < SAMPLE_RATE // 20:
            raise ValueError(f"too short to recognise: {len(samples)} samples")
        return self.text(self.greedy(self.features(samples)))

    def features(self, samples: Array) -> Array:
        """Samples to features [frames, dim] float32. The graphs normalise them."""
        if self.encoder is None:
            return log_mel(samples, self.settings["frontend"])
        inputs = self.encoder.get_inputs()
        values = {inputs[0].name: samples.astype(np.float32)[None]}
        if len(inputs) > 1:  # a mask of real samples
            values[inputs[1].name] = np.ones((1, len(samples)), dtype=np.int64)
        return self.encoder.run(None, values)[0][0].astype(np.float32)

    def greedy(self, features: Array) -> list[int]:
        """Return the best token of every step: features [frames, dim] to ids without blanks."""
        search = {"ctc": search_ctc, "transducer": search_transducer, "las": search_las}[
            self.settings["kind"]
        ]
        return search(self.graphs, self.settings, features[None], np.array([len(features)]))

    def text(self, ids: list[int]) -> str:
        """Return the text of tokens."""
        joined = "".join(UNKNOWN_TEXT if id == UNKNOWN else self.symbols[id] for id in ids)
        if self.settings["tokens"] == "pieces":  # the first word begins with a space, too
            joined = joined.lstrip(SPACE)
        return joined.replace(SPACE, " ")


def search_ctc(graphs: dict[str, Any], settings: dict[str, Any], x: Array, lengths: Array) -> list[int]:
    """The best token of each frame; repeated tokens count once."""
    log_probs, _ = graphs["model"].run(None, {"x": x, "x_length": lengths})
    path = log_probs[0].argmax(axis=-1).tolist()
    return [id for id, last in zip(path, [BLANK, *path], strict=False) if id not in (BLANK, last)]


def search_transducer(
    graphs: dict[str, Any], settings: dict[str, Any], x: Array, lengths: Array
) -> list[int]:
    """The best token of each frame until it is a blank, at most `symbols_per_frame` times."""
    frames, _ = graphs["encoder"].run(None, {"x": x, "x_lens": lengths})
    ids = [BLANK] * settings["context"]

    def predict() -> Array:
        labels = np.array([ids[-settings["context"] :]], dtype=np.int64)
        return graphs["decoder"].run(None, {"y": labels})[0]

    state = predict()
    for frame in frames[0]:
        for _ in range(settings["symbols_per_frame"]):
            inputs = {"encoder_out": frame[None], "decoder_out": state}
            best = int(graphs["joiner"].run(None, inputs)[0].argmax())
            if best == BLANK:
                break
            ids.append(best)
            state = predict()
    return ids[settings["context"] :]


def search_las(graphs: dict[str, Any], settings: dict[str, Any], x: Array, lengths: Array) -> list[int]:
    """The best token after the best tokens so far, until the end; at most one token per frame."""
    frames, keys, lengths = graphs["encoder"].run(None, {"x": x, "x_lens": lengths})
    num_frames = frames.shape[1]
    states = np.zeros((settings["decoder_layers"], 1, settings["decoder_dim"]), dtype=np.float32)
    context = np.zeros((1, frames.shape[2]), dtype=np.float32)
    attention = np.full((1, num_frames), 1 / num_frames, dtype=np.float32)
    memory = {"frames": frames, "keys": keys, "lengths": lengths}
    state = (states, states, context, attention)
    ids = [BLANK]
    while len(ids) <= num_frames:
        names = ("hidden", "carry", "context", "attention")
        inputs = {
            "token": np.array(ids[-1:], dtype=np.int64),
            **memory,
            **dict(zip(names, state, strict=True)),
        }
        logits, *state = graphs["decoder"].run(None, inputs)
        best = int(logits.argmax())
        if best == BLANK:
            break
        ids.append(best)
    return ids[1:]


def log_mel(samples: Array, settings: dict[str, Any]) -> Array:
    """Kaldi's log-mel energies without dither: [frames, dim] float32."""
    window, hop, size = settings["window"], settings["hop"], settings["fft_size"]
    scaled = samples.astype(np.float64) * settings["scale"]
    frames = np.lib.stride_tricks.sliding_window_view(scaled, window)[::hop]
    frames = frames - frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    povey = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / (window - 1))) ** 0.85
    spectra = np.fft.rfft((frames - settings["preemphasis"] * before) * povey, n=size)
    energies = (spectra.real**2 + spectra.imag**2) @ mel_banks(settings)
    return np.log(np.maximum(energies, settings["log_floor"])).astype(np.float32)


def mel_banks(settings: dict[str, Any]) -> Array:
    """Triangles, equally spaced and linear in mel: [fft_size // 2 + 1, dim]."""

    def mel(hertz: Array) -> Array:
        return 1127.0 * np.log1p(np.asarray(hertz) / 700.0)

    dim, size = settings["dim"], settings["fft_size"]
    low, high = mel([settings["lowest_hertz"], settings["highest_hertz"]])
    step = (high - low) / (dim + 1)
    left = low + step * np.arange(dim)
    bins = mel(np.arange(size // 2 + 1) * SAMPLE_RATE / size)[:, None]
    banks = np.maximum(np.minimum((bins - left) / step, (left + 2 * step - bins) / step), 0.0)
    banks[-1] = 0.0
    return banks


def regular(path: Path) -> Path:
    """Refuse a pipe or a device in place of a file: we would wait for ever."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file")
    return path


def read_symbols(path: Path) -> list[str]:
    """Read tokens.txt: a symbol and its id on each line, in the order of the ids."""
    lines = regular(path).read_text(encoding="utf-8").split("\n")
    return [line.rpartition(" ")[0] for line in lines if line]


def read_samples(path: Path) -> Array:
    """Read a recording: mono samples at 16 kHz, float32 between −1 and 1."""
    try:
        with wave.open(str(regular(path)), "rb") as file:
            if file.getsampwidth() != 2:
                raise wave.Error
            rate, channels = file.getframerate(), file.getnchannels()
            integers = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").reshape(-1, channels)
            samples = integers.astype(np.float32) / np.float32(32768)
    except (wave.Error, EOFError, RuntimeError):  # RuntimeError: a part that is longer than the file
        try:
            import soundfile
        except ImportError:
            raise ValueError("not a WAV file of 16 bits: pip install soundfile") from None
        try:
            samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, TypeError) as error:  # TypeError: a name that ends in .raw
            raise ValueError(f"unreadable audio: {str(error).rpartition(': ')[2]}") from None
    mono = samples.mean(axis=1, dtype=np.float32) if samples.shape[1] > 1 else samples[:, 0]
    if rate == SAMPLE_RATE:
        return mono
    try:
        import soxr
    except ImportError:
        raise ValueError(f"{rate} samples a second instead of {SAMPLE_RATE}: pip install soxr") from None
    return soxr.resample(mono, rate, SAMPLE_RATE, quality="HQ").astype(np.float32)


def read_settings(folder: Path) -> dict[str, Any]:
    """Return what export.json says. Compare it, and the files that it lists, with their checksums."""
    try:
        text = regular(folder / "export.json").read_text(encoding="utf-8")
        settings: dict[str, Any] = json.loads(text)
        if not isinstance(settings, dict) or not isinstance(settings.get("files", {}), dict):
            raise ValueError("it, or its key files, is no object")
    except ValueError as error:
        raise ValueError(f"{folder / 'export.json'} is damaged ({error}). Export the model again") from None
    checksum = settings.pop("sha256", None)
    files = {folder / name: digest for name, digest in settings.get("files", {}).items()}
    found = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()}
    damaged = [path for path, digest in found.items() if digest != files[path]]
    body = json.dumps(settings, separators=(",", ":")).encode()
    is_old = checksum is None and not files  # of a version that wrote no checksums
    if not is_old and checksum != hashlib.sha256(body).hexdigest():
        damaged.append(folder / "export.json")
    if damaged:
        raise ValueError(f"{damaged[-1]} is damaged: its checksum does not match. Export the model again")
    return settings


def open_graph(path: Path) -> Any:
    """Open an ONNX file on one thread of the CPU."""
    import onnxruntime

    if not path.is_file():
        raise ValueError(f"{path} does not exist: was it exported (--int8)?")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Recognise recordings with the model in this folder.")
    parser.add_argument("recordings", nargs="+", type=Path)
    parser.add_argument("--int8", action="store_true", help="use the quantised graphs")
    options = parser.parse_args()
    transcriber = Transcriber(Path(__file__).resolve().parent, options.int8)
    failed = False
    for path in options.recordings:
        try:
            text = transcriber.transcribe(read_samples(path))
        except (ValueError, OSError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            failed = True
            continue
        print(text if len(options.recordings) == 1 else f"{path}\t{text}")
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
