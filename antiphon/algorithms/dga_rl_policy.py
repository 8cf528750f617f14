"""The network that learns how far to trust a client, and what it learns from: duels of two weightings.

One network scores every client of a cohort from that client's features alone, so the scores follow the
clients whatever their order and number. Log-weights of the policy are those of a rival (DGA's softmax)
plus the scores: α_k ∝ s_k · exp(q_k). A duel is a round in which both weightings made a model of the
same updates, and the reward r in [−1, 1] says whose model was better.

| symbol          | here                                                              |
| --------------- | ----------------------------------------------------------------- |
| f_k             | features [clients, features]                                      |
| q_k = q_θ(f_k)  | scores, within ± `limit`                                          |
| α_k, s_k        | weights of the policy as played (with its noise) and of the rival |
| d_k = α_k − s_k | contrast of a duel                                                |
| e               | unevenness of a duel: N (Σ_k α_k² − Σ_k s_k²)                     |
| c = log(1+exp γ)| price of unevenness, with γ a parameter as θ is                   |
| r               | reward                                                            |

Objective. For a small step the error rate of a candidate is linear in its weights: it falls by
Σ_k α_k u_k, where u_k is the fall along client k's own update. Less the noise of the updates, which
averages out best under even weights: its variance goes with Σ_k α_k². So the policy's model is expected to
be better by m = Σ_k d_k q_k − c e, with q and c ≥ 0 learnt up to a common scale, and the expected reward is
modelled as tanh(m / 2). θ and γ minimise, over the memory of duels,

    mean [ −p log σ(m) − (1−p) log(1 − σ(m)) ] + shrinkage · mean q_k²,   p = (1+r)/2,

the cross-entropy of that model (Bradley and Terry 1952). Its gradient by q_k is −(p − σ(m)) d_k: a policy
gradient on log-weights in which the expected reward is the baseline and what the policy did differently
from its rival is the action. Without c e, the losses that the noise of exploration costs would be put
down to clients. Nothing in it depends on the policy that played the duel, so a memory of old
rounds needs no importance weights, unlike the likelihood-ratio policy gradient, whose ratios over a
whole cohort are 0 or enormous after a few steps. The policy α ∝ s · exp(q) is then the one that maximises
Σ_k α_k q_k − KL(α ‖ s): without evidence (q = 0) it is its rival.

A reward that only says "better than the rival" is the same for a policy that is a little better and one
that is far better. Here that is no end of learning: a small contrast that always wins can only be
explained by large scores, so they go on growing until the bound or the shrinkage holds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.core import Tensors
from antiphon.server.optimizers import Adam

NUM_LAYERS = 5  # as in the paper
Learnt = dict[str, Any]  # network, its optimiser's state and the memory: a plain tree, for checkpoints


@dataclass(frozen=True)
class Comparison:
    """A round as the memory holds it: features [clients, features], contrast [clients]."""

    features: Tensor
    contrast: Tensor
    unevenness: float
    reward: float

    @classmethod
    def between(cls, features: Tensor, played: Tensor, rival: Tensor, reward: float) -> Comparison:
        """Of the log-weights that were played, and of the rival's."""
        ours, theirs = torch.softmax(played, 0), torch.softmax(rival, 0)
        unevenness = len(ours) * float(ours.square().sum() - theirs.square().sum())
        return cls(features, ours - theirs, unevenness, reward)


@dataclass(frozen=True)
class Policy:
    """Five linear layers with ReLU, a bottleneck before the last; learns from mini-batches of past rounds.

    Small and slow by default: a run has hundreds of duels, whose outcomes are partly luck, and a larger
    network or rate learns them by heart (with rewards by coin, scores of ± 4 after 60 rounds at twice the
    width and three times the rate).
    """

    hidden: int = 16
    bottleneck: int = 4
    limit: float = 5.0  # a score multiplies a client's weight by at most e to this, or divides it
    optimizer: Adam = Adam(lr=1e-3, epsilon=1e-6)
    steps: int = 4  # mini-batches after each round
    batch: int = 16  # rounds in a mini-batch
    memory: int = 1000  # rounds; the oldest make room
    shrinkage: float = 1e-2

    def __post_init__(self) -> None:
        for name in ("hidden", "bottleneck", "batch", "memory"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy: {name} must be at least 1, not {getattr(self, name)}")
        if self.limit <= 0 or self.shrinkage < 0 or self.steps < 0:
            raise ValueError("policy: limit must be above 0, shrinkage and steps must not be negative")

    def begin(self, num_features: int, seed: int) -> Learnt:
        """A network that scores every client 0, and an empty memory."""
        generator = torch.Generator().manual_seed(seed)
        sizes = [num_features, *[self.hidden] * (NUM_LAYERS - 2), self.bottleneck, 1]
        network: Tensors = {}
        for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            normal = torch.randn(fan_out, fan_in, generator=generator, dtype=torch.float64)
            gain = math.sqrt(2 / fan_in) if layer < NUM_LAYERS - 1 else 0.0  # He et al. 2015
            network[f"{layer}.weight"] = gain * normal
            network[f"{layer}.bias"] = torch.zeros(fan_out, dtype=torch.float64)
        network["price"] = torch.zeros((), dtype=torch.float64)
        return {"network": network, "opt": None, "duels": empty_memory(num_features)}

    def score(self, learnt: Learnt, features: Tensor) -> Tensor:
        """[clients, features] of a new cohort -> [clients]."""
        return self.scores(learnt["network"], self.inputs(learnt, features))

    def inputs(self, learnt: Learnt, features: Tensor) -> Tensor:
        """Features [clients, features] of a new cohort, standardised by those in memory and its own."""
        return standardise(features, torch.cat([clients_of(learnt["duels"]), features]))

    def scores(self, network: Tensors, inputs: Tensor) -> Tensor:
        """[..., features] -> [...]: one score a client, from its own standardised features alone."""
        values = inputs
        for layer in range(NUM_LAYERS):
            values = F.linear(values, network[f"{layer}.weight"], network[f"{layer}.bias"])
            if layer < NUM_LAYERS - 1:
                values = F.relu(values)
        return self.limit * torch.tanh(values.squeeze(-1) / self.limit)

    def learn(self, learnt: Learnt, comparison: Comparison, seed: int) -> Learnt:
        """Remembers a duel, then takes `steps` steps on mini-batches of the memory."""
        memory = remember(learnt["duels"], comparison, self.memory)
        inputs = {**memory, "features": standardise(memory["features"], clients_of(memory))}
        network, opt = learnt["network"], learnt["opt"]
        generator = torch.Generator().manual_seed(seed)
        for _ in range(self.steps):
            rows = torch.randperm(len(memory["reward"]), generator=generator)[: self.batch]
            trained = {name: tensor.detach().requires_grad_() for name, tensor in network.items()}
            loss = self.loss(trained, {name: tensor[rows] for name, tensor in inputs.items()})
            gradient = torch.autograd.grad(loss, list(trained.values()))
            network, opt = self.optimizer(network, dict(zip(trained, gradient, strict=True)), opt)
        return {"network": network, "opt": opt, "duels": memory}

    def loss(self, network: Tensors, memory: Tensors) -> Tensor:
        """The objective above, over a batch of duels."""
        scores = self.scores(network, memory["features"])
        margin = (memory["contrast"] * scores).sum(dim=1) - F.softplus(network["price"]) * memory[
            "unevenness"
        ]
        target = (1 + memory["reward"]) / 2
        there = presence(memory)
        size = (scores.square() * there).sum() / there.sum()
        return F.binary_cross_entropy_with_logits(margin, target) + self.shrinkage * size


def standardise(values: Tensor, reference: Tensor) -> Tensor:
    """Values [..., features] less the mean of reference [rows, features], over its deviation.

    A feature that is the same in all rows says nothing: it is 0.

    >>> standardise(torch.tensor([[1.0, 7.0], [3.0, 7.0]]), torch.tensor([[1.0, 7.0], [3.0, 7.0]]))
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """
    mean, deviation = reference.mean(dim=0), reference.std(dim=0, correction=0)
    varies = deviation > 1e-6 * (1 + mean.abs())
    return torch.where(varies, (values - mean) / deviation.where(varies, torch.ones_like(mean)), 0.0)


def empty_memory(num_features: int) -> Tensors:
    """Duels side by side, padded to the largest cohort among them; a contrast of 0 leaves padding out."""
    return {
        "features": torch.zeros(0, 0, num_features, dtype=torch.float64),
        "contrast": torch.zeros(0, 0, dtype=torch.float64),
        "unevenness": torch.zeros(0, dtype=torch.float64),
        "reward": torch.zeros(0, dtype=torch.float64),
        "count": torch.zeros(0, dtype=torch.int64),
    }


def presence(memory: Tensors) -> Tensor:
    """[rounds, clients]: true where there is a client, false in the padding."""
    return torch.arange(memory["contrast"].shape[1]) < memory["count"][:, None]


def clients_of(memory: Tensors) -> Tensor:
    """Features of all clients in the memory: [clients, features]."""
    return memory["features"][presence(memory)]


def remember(memory: Tensors, comparison: Comparison, capacity: int) -> Tensors:
    """The memory with one duel more; first in, first out."""
    count = len(comparison.contrast)
    width = max(count, memory["contrast"].shape[1])
    features = F.pad(comparison.features, (0, 0, 0, width - count))[None]
    contrast = F.pad(comparison.contrast, (0, width - count))[None]
    more = width - memory["contrast"].shape[1]
    joined = {
        "features": torch.cat([F.pad(memory["features"], (0, 0, 0, more)), features]),
        "contrast": torch.cat([F.pad(memory["contrast"], (0, more)), contrast]),
        "unevenness": torch.cat(
            [memory["unevenness"], torch.tensor([comparison.unevenness], dtype=torch.float64)]
        ),
        "reward": torch.cat([memory["reward"], torch.tensor([comparison.reward], dtype=torch.float64)]),
        "count": torch.cat([memory["count"], torch.tensor([count])]),
    }
    return {name: tensor[-capacity:].clone() for name, tensor in joined.items()}
