"""The interface of a recogniser.

A model is an `nn.Module` with some more methods. All its state is parameters: buffers would need a rule for
averaging over clients, and running statistics mix speakers and padding.

The forward pass never depends on the value of a tensor, so that `torch.func.vmap` can run the parameters of
many clients at once. Computation without parameters is in `score`: one call for utterances of all clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from antiphon.data.batches import Batch
from antiphon.records.files import Damaged, with_usual_mode
from antiphon.records.reading import read_tensors
from antiphon.records.run_files import MODEL_ADVICE
from antiphon.registry import Registry


class Model(Protocol):
    """Score and transcribe utterances; an utterance scores the same alone and in a padded batch."""

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        """The forward pass: tensors [B, ...], or [B · N, ...] where it reads the N texts of an utterance."""

    def score(self, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        """Negative log likelihood of each text of each utterance in nats, summed over its tokens: [B · N]."""

    def losses(self, batch: Batch) -> Tensor:
        """Forward pass and score: [B · N]. Texts of one utterance share one pass of the encoder."""

    def greedy(self, batch: Batch) -> list[list[int]]:
        """The best token at every step of each utterance, without id 0. Call `eval()` first."""

    def fits(self, num_frames: int, tokens: Sequence[int]) -> bool:
        """Whether the loss of such an utterance can be finite."""

    # The part of `nn.Module` that is used: a protocol cannot inherit it.
    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...
    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]: ...
    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]: ...
    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...
    def to(self, *args: Any, **kwargs: Any) -> Any: ...


class ModelConfig(Protocol):
    """A frozen dataclass of settings that builds a model.

    Parameters are drawn from torch's global generator, which the caller seeds. Optional: `packed` and
    `unpacked`, as front ends have, and `why_whole`, the reason why the model cannot be pruned.
    """

    def build(self, input_dim: int, num_tokens: int) -> Model: ...


class EncoderConfig(Protocol):
    """A frozen dataclass of settings that builds the encoder of a CTC model or a transducer.

    The encoder is an `nn.Module`: features [B, T, D] and lengths [B] -> encoded frames [B, T', dim] and their
    lengths [B]. It has `dim` and `num_output_frames(num_frames)`.
    """

    def build(self, input_dim: int) -> Any: ...


_HOMES = ["antiphon.models", "antiphon.models.huggingface"]
ENCODERS = Registry("antiphon.encoders", kind=EncoderConfig, homes=_HOMES, default="conformer")
MODELS = Registry("antiphon.models", kind=ModelConfig, homes=_HOMES, default="ctc")


def build_model(config: ModelConfig, input_dim: int, num_tokens: int, where: str = "") -> Model:
    """Build a model; ValueError if it does not fit into memory. `where` names the file with its settings."""
    try:
        return config.build(input_dim, num_tokens)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        file = f"{where}: " if where else ""
        raise ValueError(f"{file}a model of this size does not fit into memory: {config}") from None


def save_parameters(model: Model, path: Path) -> None:
    """Write all parameters to a safetensors file."""
    with with_usual_mode(path):
        save_file({name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}, path)


def read_parameters(path: Path, like: Mapping[str, Tensor], device: str = "cpu") -> dict[str, Tensor]:
    """Read what `save_parameters` wrote, in its order; refuse a file that lacks parameters of `like`."""
    tensors = read_tensors(path, MODEL_ADVICE, device=device)
    for name, tensor in like.items():
        found = tensors.get(name)
        if found is None or (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(f"{path} does not fit {path.stem}.json (parameter {name!r}), or the tokens")
        if not torch.isfinite(found).all():
            raise Damaged(f"{path} is damaged ({name!r} has values that are not finite). {MODEL_ADVICE}")
    return tensors


def load_parameters(model: Model, path: Path) -> None:
    """Read parameters that `save_parameters` wrote; refuse a file of another model."""
    tensors = read_parameters(path, dict(model.named_parameters()))
    if others := sorted(tensors.keys() - {name for name, _ in model.named_parameters()}):
        raise ValueError(f"{path} does not fit {path.stem}.json (parameter {others[0]!r}), or the tokens")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name])
