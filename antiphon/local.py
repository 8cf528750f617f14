"""How a client trains in a round: what an algorithm writes into a task and a client reads from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from antiphon.core import Scalar, ServerState
from antiphon.seeding import derive


@dataclass(frozen=True)
class LocalTraining:
    """Plain SGD on the client's own utterances: stateless, so nothing has to stay on the device.

    The objective is the mean over utterances of (loss of the utterance / its number of tokens).
    """

    lr: float = 0.05
    epochs: int = 1
    steps: int = 0  # more than 0: exactly this many steps, instead of epochs
    batch_seconds: float = 60.0  # of audio in a batch, padding included; 0: everything in one batch
    clip_norm: float = 1.0  # largest l2 norm of a step's gradient; 0: no clipping
    proximal: float = 0.0  # FedProx (Li et al. 2020): adds proximal/2 · ||w − w_server||² to the loss

    def __post_init__(self) -> None:
        if self.steps <= 0 and self.epochs <= 0:
            raise ValueError(
                f"local training needs epochs or steps above 0, not {self.epochs} and {self.steps}"
            )
        for name in ("lr", "batch_seconds", "clip_norm", "proximal"):
            if getattr(self, name) < 0:
                raise ValueError(f"local training: {name} must not be negative, not {getattr(self, name)}")

    def task_config(
        self, state: ServerState, scale: float = 1.0, purpose: str = "train"
    ) -> dict[str, Scalar]:
        """The configuration of a task: learning rate after its schedule, and the round's own seed."""
        seed = derive(state.seed, purpose, state.round)
        return {**asdict(self), "lr": self.lr * scale, "round": state.round, "seed": seed}

    @classmethod
    def from_task(cls, config: Mapping[str, Scalar]) -> LocalTraining:
        return cls(**{field.name: config[field.name] for field in fields(cls)})  # type: ignore[arg-type]
