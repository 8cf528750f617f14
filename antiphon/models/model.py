"""What a recogniser is to the rest of the package.

A model is an `nn.Module` with some methods more. All its state is parameters: buffers would need
a rule of their own for averaging over clients, and running statistics mix speakers and padding.

Its forward pass looks at no tensor's value, so that `torch.func.vmap` can run many clients' parameters at
once; what has no parameters is apart in `score`, which takes the utterances of all clients in one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from antiphon.data.batches import Batch
from antiphon.registry import Registry, open_kind


class Model(Protocol):
    """Scores and transcribes utterances; an utterance scores the same alone and in a padded batch."""

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        """What the parameters make of a batch: tensors [B, ...], or [B · N, ...] where texts are read."""
        ...

    def score(self, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        """Negative log likelihood of each text of each utterance in nats, summed over its tokens: [B · N]."""
        ...

    def losses(self, batch: Batch) -> Tensor:
        """Forward pass and score: [B · N]. Texts of one utterance share one pass of the encoder."""
        ...

    def greedy(self, batch: Batch) -> list[list[int]]:
        """The best token at every step of each utterance, without id 0. Call `eval()` first."""
        ...

    def fits(self, num_frames: int, tokens: Sequence[int]) -> bool:
        """Whether the loss of such an utterance can be finite."""
        ...

    # What is used of `nn.Module`, which a protocol cannot inherit.
    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...
    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]: ...
    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]: ...
    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...
    def to(self, *args: Any, **kwargs: Any) -> Any: ...


class ModelConfig(Protocol):
    """A frozen dataclass of settings that builds a model.

    Parameters are drawn from torch's global generator, which the caller seeds. It may also have `packed` and
    `unpacked`, as front ends do, and `why_whole`: why units cannot be removed from the model.
    """

    def build(self, input_dim: int, num_tokens: int) -> Model: ...


MODELS = open_kind(
    ModelConfig,
    Registry(
        "antiphon.models",
        ("build",),
        homes=["antiphon.models", "antiphon.models.huggingface"],
        default="ctc",
    ),
)
