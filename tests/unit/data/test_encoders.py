"""Pretrained encoders: found in an installed package, checked by their checksums, never imported."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon.config import from_dict, to_dict
from antiphon.data import encoders as module
from antiphon.data.encoders import KNOWN_ENCODERS, MOONSHINE_TINY, Moonshine, find_installed
from antiphon.experiment.settings import Experiment
from antiphon.recipes import recipe


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package on the path, as pip lays it out, that would fail if it were imported."""
    info = tmp_path / "site" / "moonshine_voice-0.0.73.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moonshine-voice\nVersion: 0.0.73\n")
    file = tmp_path / "site" / MOONSHINE_TINY.file
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    (tmp_path / "site" / "moonshine_voice" / "__init__.py").write_text("raise ImportError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return file


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_installed", lambda encoder: None)


def test_the_file_is_found_in_the_installed_package_without_an_import(installed: Path) -> None:
    assert find_installed(MOONSHINE_TINY) == installed
    assert "moonshine_voice" not in sys.modules


def test_a_package_without_the_file_does_not_count(installed: Path) -> None:
    installed.unlink()
    assert find_installed(MOONSHINE_TINY) is None


def test_files_are_told_apart_by_their_checksums(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.onnx").write_bytes(b"other")
    known = replace(MOONSHINE_TINY, sha256=hashlib.sha256(b"weights").hexdigest())
    monkeypatch.setattr(module, "KNOWN_ENCODERS", (known,))
    first, second = module.encoders([tmp_path / "other.onnx"])
    assert (first.path, first.encoder) == (installed, known)
    assert second.encoder is None
    assert second.sha256 == hashlib.sha256(b"other").hexdigest()
    with pytest.raises(ValueError, match=r"there is no file .*gone\.onnx"):
        module.encoders([tmp_path / "gone.onnx"])


def test_known_encoders_have_different_names_and_checksums() -> None:
    assert len({encoder.name for encoder in KNOWN_ENCODERS}) == len(KNOWN_ENCODERS)
    assert all(len(encoder.sha256) == 64 for encoder in KNOWN_ENCODERS)
    assert len({encoder.sha256 for encoder in KNOWN_ENCODERS}) == len(KNOWN_ENCODERS)


@pytest.mark.usefixtures("missing")
def test_without_the_package_the_front_end_says_what_to_install() -> None:
    with pytest.raises(ValueError, match=r"moonshine-voice 0.0.73: pip install 'antiphon\[encoder\]'"):
        _ = Moonshine().dim


@pytest.mark.usefixtures("missing")
def test_without_the_package_the_demo_runs_on_filterbanks() -> None:
    assert replace(recipe("demo"), recipe="") == replace(recipe("demo-filterbank"), recipe="")


def test_with_the_package_the_demo_runs_on_the_encoder(installed: Path) -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    experiment = recipe("demo")
    assert experiment.frontend == Moonshine()
    assert experiment.runs == recipe("demo-filterbank").runs
    assert from_dict(Experiment, to_dict(experiment)) == experiment


def test_the_encoder_that_pip_installs_turns_a_second_into_forty_frames() -> None:
    if not Moonshine.is_installed():
        pytest.skip("not installed: pip install 'antiphon[encoder]'")
    (file,) = [file for file in module.encoders() if file.encoder == MOONSHINE_TINY]
    assert file.sha256 == MOONSHINE_TINY.sha256
    frontend = Moonshine()
    assert frontend.dim == MOONSHINE_TINY.dim
    assert frontend.frames_per_second == pytest.approx(16000 / 384)
    frames = frontend.load()(np.random.default_rng(0).standard_normal(16000).astype(np.float32))
    assert frames.shape == (40, 288)
    assert np.isfinite(frames).all()
