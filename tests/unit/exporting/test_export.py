"""An exported folder recognises speech as the run's model does, without antiphon and torch."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_models import CONFIGS, FRONTEND, TEXTS, Case, random_recognizer, recording
from world import LETTERS, MODELS, World, tones, write_wav

import antiphon
from antiphon.data.frontends import Filterbank, OnnxEncoder
from antiphon.data.tokens import Characters, Unigram, UnigramConfig
from antiphon.exporting.export_folder import describe, symbols_of
from antiphon.exporting.transcribe import Transcriber, log_mel, read_settings
from antiphon.models.huggingface.speech_models import HuggingFaceCtc
from antiphon.recognizer import Recognizer

Exported = Callable[[str], Case]
ALONE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("antiphon", "torch", "soundfile", "soxr", "onnx"):
            raise ImportError(f"{name} is not installed")
sys.meta_path.insert(0, Refuse())
import runpy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("name", CONFIGS)
def test_texts_are_those_of_the_run(exported: Exported, name: str) -> None:
    case = exported(name)
    transcriber = case.transcriber()
    texts = [case.recognizer.transcribe(recording(text)) for text in TEXTS]
    assert [transcriber.transcribe(recording(text)) for text in TEXTS] == texts
    assert len(set(texts)) > 1
    assert max(map(len, texts)) > 1


@pytest.mark.parametrize("name", ["ctc", "transducer", "las"])
def test_the_folder_alone_recognises_recordings(exported: Exported, name: str, tmp_path: Path) -> None:
    case = exported(name)
    waves = [
        write_wav(tmp_path / f"{number}.wav", tones(text, 1.0, np.random.default_rng(len(text))))
        for number, text in enumerate(TEXTS)
    ]
    command = [sys.executable, "-I", "-c", ALONE, str(case.folder / "transcribe.py"), *map(str, waves)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    expected = [f"{wave}\t{case.recognizer.transcribe(wave)}" for wave in waves]
    assert done.stdout.split("\n")[:-1] == expected


def test_a_recording_that_cannot_be_read_does_not_stop_the_others(exported: Exported, tmp_path: Path) -> None:
    case = exported("ctc")
    wave = write_wav(tmp_path / "a.wav", tones(TEXTS[1], 1.0, np.random.default_rng(0)))
    (tmp_path / "b.wav").write_bytes(b"no audio")
    long_part = b"RIFF" + (20).to_bytes(4, "little") + b"WAVEjunk" + (1000).to_bytes(4, "little") + bytes(8)
    (tmp_path / "d.wav").write_bytes(long_part)
    short = write_wav(tmp_path / "c.wav", np.zeros(300, np.int16))
    script = [sys.executable, "-I", "-c", ALONE, str(case.folder / "transcribe.py"), "--int8"]
    files = [str(tmp_path / "b.wav"), str(wave), str(short), str(tmp_path / "d.wav")]
    done = subprocess.run([*script, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "b.wav: not a WAV file of 16 bits: pip install soundfile" in done.stderr
    assert "c.wav: too short to recognise: 300 samples" in done.stderr
    assert "d.wav: not a WAV file of 16 bits" in done.stderr
    assert done.stdout.startswith(f"{wave}\t")


@pytest.mark.parametrize("dim", [8, 80])
def test_energies_are_those_of_the_filterbank(dim: int) -> None:
    frontend = Filterbank(dim, normalise=False)
    recognizer = random_recognizer(MODELS["ctc"], frontend, Characters(LETTERS))  # type: ignore[arg-type]
    settings = describe(recognizer)["frontend"]
    for text in TEXTS:
        ours, theirs = np.exp(log_mel(recording(text), settings)), np.exp(frontend.load()(recording(text)))
        # Rounding of float32 is relative to the strongest part of a frame.
        assert (np.abs(ours - theirs) <= 1e-5 * theirs + 1e-6 * theirs.max(axis=1, keepdims=True)).all()


def test_pieces_become_text_as_sentencepiece_does_it() -> None:
    texts = ["hello world this is some text", "the cat and the dog ran over the hill again and again"]
    tokens = UnigramConfig(size=31).fit(texts * 5, None)
    assert isinstance(tokens, Unigram)
    transcriber = Transcriber.__new__(Transcriber)
    transcriber.settings, transcriber.symbols = {"tokens": "pieces"}, symbols_of(tokens)
    generator = random.Random(0)
    space = tokens.pieces.index("▁")
    for _ in range(3000):
        ids = [generator.randrange(1, tokens.size) for _ in range(generator.randrange(6))]
        ids = [space] * generator.randrange(3) + ids
        assert transcriber.text(ids) == tokens.decode(ids)


def test_tokens_have_a_symbol_and_an_id_on_each_line(exported: Exported) -> None:
    lines = (exported("ctc").folder / "tokens.txt").read_text().splitlines()
    assert lines == ["<blk> 0", "<unk> 1", "a 2", "b 3", "c 4", "d 5", "e 6", "▁ 7"]


def test_quantised_graphs_are_smaller_and_have_8_bits(exported: Exported) -> None:
    onnx = pytest.importorskip("onnx")
    case = exported("ctc blstm")
    graph = onnx.load(case.folder / "model.int8.onnx").graph
    matrices = [t for t in graph.initializer if np.prod(sorted(t.dims)[:-1]) > 8]
    assert {onnx.TensorProto.DataType.Name(t.data_type) for t in matrices} == {"INT8"}
    sizes = [(case.folder / f"model{suffix}.onnx").stat().st_size for suffix in ("", ".int8")]
    assert sizes[1] < sizes[0]
    assert isinstance(case.transcriber(int8=True).transcribe(recording(TEXTS[0])), str)


def test_the_exported_models_are_compared_on_a_split(
    exported: Exported, world: World, tmp_path: Path
) -> None:
    calls: list[tuple[str, int, int | None]] = []
    made = antiphon.export(
        exported("ctc").run,
        tmp_path / "out",
        int8=True,
        data=world.corpus,
        progress=lambda stage, done, total: calls.append((stage, done, total)),
    )
    names = [row.name for row in made.comparison]
    assert names == ["PyTorch", "ONNX float32", "ONNX int8"]
    first, second, third = made.comparison
    assert made.num_utterances == first.num_same == second.num_same == 9
    assert first.errors == second.errors
    assert third.errors.length == first.errors.length
    assert calls[-1] == ("compare", 9, 9)
    assert {stage for stage, _, _ in calls} == {"export", "compare"}
    with pytest.raises(ValueError, match="has no split 'dev' to compare on"):
        antiphon.export(exported("ctc").run, tmp_path / "other", data=world.corpus, split="dev")
    assert not (tmp_path / "other").exists()


def test_a_folder_with_files_is_left_alone(exported: Exported, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists and is not empty: choose another folder"):
        antiphon.export(exported("ctc").run, tmp_path, split="")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_what_cannot_be_exported_is_refused_before_any_work() -> None:
    characters, ctc = Characters(LETTERS), MODELS["ctc"]
    good = random_recognizer(ctc, FRONTEND, characters)  # type: ignore[arg-type]

    class Odd:
        dim = 8

    odd: Any = Odd()
    refused = Recognizer(good.blueprint.__class__(odd, good.blueprint.model), characters, good.model)
    with pytest.raises(ValueError, match="the front end Odd cannot be exported"):
        describe(refused)
    with pytest.raises(ValueError, match="tokens of the kind Odd cannot be exported"):
        describe(Recognizer(good.blueprint, odd, good.model))
    with pytest.raises(ValueError, match="a Odd cannot be exported: antiphon exports CTC models"):
        describe(Recognizer(good.blueprint, characters, odd))
    theirs = HuggingFaceCtc.__new__(HuggingFaceCtc)
    with pytest.raises(ValueError, match=r"a Hugging Face model is not exported: .*optimum-cli export"):
        describe(Recognizer(good.blueprint, characters, theirs))


def test_the_file_of_an_encoder_goes_along(tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    frontend = OnnxEncoder(str(write_encoder(tmp_path / "encoder.onnx")))
    recognizer = random_recognizer(MODELS["ctc"], frontend, Characters(LETTERS))  # type: ignore[arg-type]
    recognizer.save(tmp_path / "run" / "model", {"run": "ctc", "round": 1})
    antiphon.export(tmp_path / "run", tmp_path / "exported", split="")
    copy = tmp_path / "exported" / "frontend.onnx"
    assert copy.read_bytes() == (tmp_path / "encoder.onnx").read_bytes()
    texts = [recognizer.transcribe(recording(text)) for text in TEXTS]
    transcriber = Transcriber(tmp_path / "exported")
    assert [transcriber.transcribe(recording(text)) for text in TEXTS] == texts
    assert len(set(texts)) > 1


def write_encoder(path: Path) -> Path:
    """Write an encoder: 8 filters over windows of 20 ms, every 10 ms."""
    import onnx

    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    filters = np.random.default_rng(0).normal(size=(8, 1, 320)).astype(np.float32)
    nodes = [
        helper.make_node("Unsqueeze", ["samples", "one"], ["channel"]),
        helper.make_node("Conv", ["channel", "filters"], ["filtered"], strides=[160]),
        helper.make_node("Transpose", ["filtered"], ["frames"], perm=[0, 2, 1]),
    ]
    constants = [onnx.numpy_helper.from_array(filters, "filters")]
    constants.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    inputs = [helper.make_tensor_value_info("samples", float32, ["batch", "samples"])]
    outputs = [helper.make_tensor_value_info("frames", float32, ["batch", "frames", 8])]
    graph = helper.make_graph(nodes, "encoder", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


BAD_RECORDINGS = {
    "text.wav": b"no audio at all",
    "empty.wav": b"",
    "cut.flac": b"fLaC\0\0\0\x22" + bytes(20),
    "header.wav": b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0" + bytes(24),
    "raw.raw": bytes(100),
}


def test_bad_recordings_are_one_line_each_and_others_are_recognised(
    exported: Exported, tmp_path: Path
) -> None:
    pytest.importorskip("soundfile")
    case = exported("ctc")
    good = write_wav(tmp_path / "good.wav", tones(TEXTS[1], 1.0, np.random.default_rng(0)))
    for name, data in BAD_RECORDINGS.items():
        (tmp_path / name).write_bytes(data)
    os.mkfifo(tmp_path / "pipe.wav")
    names = [*BAD_RECORDINGS, "missing.wav", "pipe.wav"]
    command = [sys.executable, str(case.folder / "transcribe.py"), *names, str(good)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert done.stdout == f"{good}\t{case.recognizer.transcribe(good)}\n"
    lines = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == names


@pytest.mark.parametrize("name", ["export.json", "tokens.txt"])
def test_a_pipe_in_place_of_an_exported_file_is_named(exported: Exported, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "exported"
    shutil.copytree(exported("ctc").folder, folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    wave = write_wav(tmp_path / "a.wav", tones(TEXTS[1], 1.0, np.random.default_rng(0)))
    command = [sys.executable, str(folder / "transcribe.py"), str(wave)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert name in line


@pytest.mark.parametrize("text", ["[]", "7", '{"files": []}', '{"files": null}'])
def test_settings_of_an_export_that_are_no_objects_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "export.json").write_text(text)
    with pytest.raises(ValueError, match=r"export\.json is damaged .* Export the model again"):
        read_settings(tmp_path)
