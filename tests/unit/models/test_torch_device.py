"""Names of devices: a wrong one is answered with the right ones, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import antiphon
from antiphon.models.torch_device import find_device


@pytest.mark.parametrize("name", ["gpu", "mps:x", "", "cuda:x:1"])
def test_an_unknown_device_is_refused_with_the_names_that_there_are(name: str) -> None:
    with pytest.raises(ValueError, match=r"^no device ") as caught:
        find_device(name)
    message = str(caught.value)
    assert len(message) < 120
    assert "opencl" not in message  # torch's own message lists twenty back ends


def test_the_message_names_the_choices() -> None:
    with pytest.raises(ValueError, match=r"no device 'gpu': cpu, cuda, cuda:1 … or auto"):
        find_device("gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused_and_auto_is_the_cpu() -> None:
    with pytest.raises(ValueError, match=r"no device 'cuda': no GPU was found; use --device cpu"):
        find_device("cuda")
    assert find_device("auto").type == "cpu"


def test_language_models_and_recognisers_refuse_it_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no device 'gpu'"):
        antiphon.train_transformer_lm(tmp_path / "nothing.txt", tmp_path / "lm", device="gpu")
    with pytest.raises(ValueError, match="no device 'gpu'"):
        antiphon.Recognizer.load(tmp_path, device="gpu")
    assert list(tmp_path.iterdir()) == []
