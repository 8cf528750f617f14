"""Small models and batches of random utterances."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from antiphon.data.batches import Batch
from antiphon.models.blstm import BlstmConfig
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.las import LasConfig
from antiphon.models.noise import Dropout
from antiphon.models.transducer import TransducerConfig

DIM, NUM_TOKENS = 5, 7

TINY = {
    "conformer": CtcConfig(ConformerConfig(dim=8, num_layers=2, num_heads=2, kernel_size=3, stack=1)),
    "stacked conformer": CtcConfig(ConformerConfig(dim=8, num_layers=1, num_heads=2, kernel_size=5, stack=2)),
    "blstm": CtcConfig(BlstmConfig(dim=4, num_layers=2, stack=3)),
    "las": LasConfig(
        BlstmConfig(dim=4, num_layers=2, stack=2),
        decoder_dim=6,
        attention_dim=5,
        location_channels=2,
        location_width=3,
    ),
    "joint las": LasConfig(
        BlstmConfig(dim=4, num_layers=2, stack=2),
        decoder_dim=6,
        attention_dim=5,
        location_channels=2,
        location_width=3,
        ctc_weight=0.3,
    ),
    "transducer": TransducerConfig(
        ConformerConfig(dim=8, num_layers=1, num_heads=2, kernel_size=3, stack=2),
        prediction_dim=6,
        joint_dim=7,
    ),
}


def make_batch(
    frames: Sequence[int], tokens: Sequence[Sequence[int]], seed: int = 0, dim: int = DIM, padding: int = 0
) -> Batch:
    """Random float64 features of the given lengths; utterance i is the same whoever its neighbours are."""
    features = torch.zeros(len(frames), max(frames) + padding, dim, dtype=torch.float64)
    ids = torch.zeros(len(tokens), max(map(len, tokens)) + padding, dtype=torch.int64)
    for i, (length, spelled) in enumerate(zip(frames, tokens, strict=True)):
        generator = torch.Generator().manual_seed(1000 * seed + length)
        features[i, :length] = torch.randn(length, dim, generator=generator, dtype=torch.float64)
        ids[i, : len(spelled)] = torch.tensor(spelled, dtype=torch.int64)
    return Batch(
        features,
        torch.tensor(frames),
        ids,
        torch.tensor([len(spelled) for spelled in tokens]),
        tuple(range(len(frames))),
    )


@pytest.fixture(scope="session")
def batch_of() -> Callable[..., Batch]:
    return make_batch


@pytest.fixture(params=TINY)
def tiny(request: pytest.FixtureRequest) -> nn.Module:
    """Every kind of model in turn, tiny, in float64, without dropout; training: its whole loss acts."""
    torch.manual_seed(0)
    model = TINY[request.param].build(DIM, NUM_TOKENS).double().train()
    for module in model.modules():
        if isinstance(module, Dropout):
            module.rate = 0.0
    return model


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A tiny model of every kind in Hugging Face format."""
    from tiny_folders import ALL, write_folder  # here: the other models are tested without transformers too

    return {name: str(write_folder(tmp_path_factory.mktemp("folder"), name)) for name in ALL}


@pytest.fixture
def utterances(name: str, batch_of: Callable[..., Batch]) -> Callable[..., Batch]:
    """Random utterances as the Hugging Face model of that name takes them."""
    from tiny_folders import DIMS

    return lambda *arguments, **more: batch_of(*arguments, dim=DIMS[name], **more)
