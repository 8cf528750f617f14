from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from antiphon.data.frontends import Filterbank, OnnxEncoder, mel_banks

RATE = 16000


def speech_like(seconds: float, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    time = np.arange(int(seconds * RATE)) / RATE
    noise = generator.standard_normal(len(time)) * (0.1 + 0.1 * np.sin(2 * np.pi * 3 * time))
    return (0.2 * np.sin(2 * np.pi * 220 * time) + noise + 0.05).astype(np.float32)


# --- Filterbank


@pytest.mark.parametrize("dim", [23, 80])
def test_filterbank_equals_kaldi_native_fbank(dim: int) -> None:
    knf = pytest.importorskip("kaldi_native_fbank")
    options = knf.FbankOptions()
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = dim
    samples = speech_like(2.0)
    kaldi = knf.OnlineFbank(options)
    kaldi.accept_waveform(RATE, (samples * 32768).tolist())
    kaldi.input_finished()
    expected = np.stack([kaldi.get_frame(frame) for frame in range(kaldi.num_frames_ready)])
    found = Filterbank(dim=dim, normalise=False).load()(samples)
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-4)


@pytest.mark.parametrize(("num_samples", "num_frames"), [(400, 1), (559, 1), (560, 2), (16240, 100)])
def test_only_whole_windows_make_frames_100_of_them_a_second(num_samples: int, num_frames: int) -> None:
    frontend = Filterbank()
    assert frontend.load()(speech_like(2)[:num_samples]).shape == (num_frames, 80)
    assert frontend.frames_per_second == 100.0


def test_a_tone_lights_up_the_mel_bin_that_covers_it() -> None:
    tone = np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE).astype(np.float32)
    energies = Filterbank(normalise=False).load()(tone)
    covering = mel_banks(80)[1000 * 512 // RATE].argmax()
    assert (energies.argmax(axis=1) == int(covering)).all()


def test_normalised_bins_have_mean_0_and_variance_1_over_time() -> None:
    frames = Filterbank().load()(speech_like(1.0)).astype(np.float64)
    np.testing.assert_allclose(frames.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(frames.var(axis=0), 1, atol=1e-4)


def test_normalising_takes_loudness_away() -> None:
    extract, samples = Filterbank().load(), speech_like(1.0)
    np.testing.assert_allclose(extract(samples), extract(samples / 8), atol=1e-3)


def test_digital_silence_gives_zeros_not_nan() -> None:
    assert (Filterbank().load()(np.zeros(RATE, dtype=np.float32)) == 0).all()


def test_an_utterance_shorter_than_a_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="too short: 399 samples, one frame needs 400"):
        Filterbank().load()(np.zeros(399, dtype=np.float32))


def test_several_channels_are_refused() -> None:
    with pytest.raises(ValueError, match="one channel"):
        Filterbank().load()(np.zeros((2, RATE), dtype=np.float32))


def test_the_samples_given_are_not_changed() -> None:
    samples = speech_like(0.5)
    before = samples.copy()
    Filterbank().load()(samples)
    np.testing.assert_array_equal(samples, before)


def test_keys_tell_front_ends_apart() -> None:
    assert len({Filterbank().key(), Filterbank(dim=40).key(), Filterbank(normalise=False).key()}) == 3


# --- OnnxEncoder, on a model written byte by byte: a convolution of width and stride HOP


HOP, DIM = 250, 3
FLOAT = 1


def proto(*fields: tuple[int, int | str | bytes]) -> bytes:
    """A protobuf message of varint and length-delimited fields."""

    def varint(value: int) -> bytes:
        head, rest = value & 0x7F, value >> 7
        return bytes([head | 0x80]) + varint(rest) if rest else bytes([head])

    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def ints(name: str, *values: int) -> tuple[int, bytes]:
    return 5, proto((1, name), *((8, value) for value in values), (20, 7))


def value_info(name: str, *dims: str | int) -> bytes:
    shape = proto(*((1, proto((2 if isinstance(dim, str) else 1, dim))) for dim in dims))
    return proto((1, name), (2, proto((1, proto((1, FLOAT), (2, shape))))))


def tiny_model(weights: np.ndarray, input_dims: tuple[str | int, ...] = ("batch", "samples")) -> bytes:
    kernel = proto(*((1, size) for size in weights.shape), (2, FLOAT), (8, "kernel"), (9, weights.tobytes()))
    # A model that is given the channel dimension does not need to make it.
    unsqueeze = proto((1, "audio"), (2, "channel"), (4, "Unsqueeze"), ints("axes", 1))
    channel = "channel" if len(input_dims) == 2 else "audio"
    nodes = (
        *([unsqueeze] if len(input_dims) == 2 else []),
        proto((1, channel), (1, "kernel"), (2, "hidden"), (4, "Conv"), ints("strides", HOP)),
        proto((1, "hidden"), (2, "frames"), (4, "Transpose"), ints("perm", 0, 2, 1)),
    )
    inputs, outputs = value_info("audio", *input_dims), value_info("frames", "batch", "time", DIM)
    graph = proto(*((1, node) for node in nodes), (2, "tiny"), (5, kernel), (11, inputs), (12, outputs))
    return proto((1, 7), (7, graph), (8, proto((2, 11))))


@pytest.fixture
def kernel() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((DIM, 1, HOP)).astype(np.float32)


@pytest.fixture
def encoder(tmp_path: Path, kernel: np.ndarray) -> OnnxEncoder:
    pytest.importorskip("onnxruntime")
    (tmp_path / "tiny.onnx").write_bytes(tiny_model(kernel))
    return OnnxEncoder(str(tmp_path / "tiny.onnx"))


def test_dimension_and_exact_frame_rate_are_measured_from_the_model(encoder: OnnxEncoder) -> None:
    assert encoder.dim == DIM
    assert encoder.frames_per_second == RATE / HOP


def test_the_encoder_gives_what_the_model_computes(encoder: OnnxEncoder, kernel: np.ndarray) -> None:
    samples = speech_like(0.1)
    expected = samples[: 6 * HOP].reshape(6, HOP) @ kernel[:, 0].T
    np.testing.assert_allclose(encoder.load()(samples), expected, atol=1e-4)


def test_a_changed_model_file_has_another_key(encoder: OnnxEncoder, kernel: np.ndarray) -> None:
    before = encoder.key()
    Path(encoder.path).write_bytes(tiny_model(kernel + 1))
    os.utime(encoder.path, ns=(1, 1))
    assert encoder.key() != before


def test_the_key_does_not_depend_on_where_the_file_is(encoder: OnnxEncoder, tmp_path: Path) -> None:
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(Path(encoder.path).read_bytes())
    assert OnnxEncoder(str(copy)).key() == encoder.key()


def test_front_ends_travel_to_other_processes(encoder: OnnxEncoder) -> None:
    encoder.load()
    assert pickle.loads(pickle.dumps(encoder)) == encoder


def test_audio_too_short_for_the_encoder_is_refused(encoder: OnnxEncoder) -> None:
    with pytest.raises(ValueError, match="100 samples"):
        encoder.load()(np.zeros(100, dtype=np.float32))


def test_a_missing_encoder_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing\.onnx does not exist"):
        OnnxEncoder(str(tmp_path / "nothing.onnx")).key()


def test_a_file_that_is_not_onnx_is_named(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(ValueError, match=r"text\.onnx is not an ONNX model"):
        OnnxEncoder(str(tmp_path / "text.onnx")).load()


def test_a_model_with_another_kind_of_input_is_refused(tmp_path: Path, kernel: np.ndarray) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "cubic.onnx").write_bytes(tiny_model(kernel, ("batch", 1, "samples")))
    with pytest.raises(ValueError, match=r"one float input \[batch, samples\].*audio tensor\(float\)"):
        OnnxEncoder(str(tmp_path / "cubic.onnx")).load()


def test_without_onnxruntime_the_user_is_told_what_to_install(
    encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"pip install 'antiphon\[onnx\]'"):
        encoder.load()


def test_moonshine_tiny_gives_288_values_41_7_times_a_second() -> None:
    pytest.importorskip("onnxruntime")
    data = os.environ.get("ANTIPHON_DATA")
    path = Path(data or ".") / "../frontends/moonshine-tiny/encoder_model.onnx"
    if data is None or not path.is_file():
        pytest.skip("needs ANTIPHON_DATA with ../frontends/moonshine-tiny/encoder_model.onnx beside it")
    encoder = OnnxEncoder(str(path))
    assert (encoder.dim, encoder.frames_per_second) == (288, RATE / 384)
    frames = encoder.load()(speech_like(2.0))
    assert frames.shape == (82, 288)
    assert np.isfinite(frames).all()
