"""The network that learns how much to trust a client, from comparisons of two weightings.

One network scores every client of a cohort from that client's features, so order and number of clients do not
matter. The log-weights of the policy are those of a rival (DGA's softmax) plus the scores: α_k ∝ s_k ·
exp(q_k). A comparison is a round in which both weightings made a model of the same updates; the reward r in
[−1, 1] says which model was better.

| symbol          | here                                                              |
| --------------- | ----------------------------------------------------------------- |
| f_k             | features [clients, features]                                      |
| q_k = q_θ(f_k)  | scores, within ± `limit`                                          |
| α_k, s_k        | weights of the policy as played (with its noise) and of the rival |
| d_k = α_k − s_k | contrast of a comparison                                          |
| e               | unevenness of a comparison: N (Σ_k α_k² − Σ_k s_k²)               |
| c = log(1+exp γ)| price of unevenness, with γ a parameter as θ is                   |
| r               | reward                                                            |

Objective. For a small step the error rate of a candidate is linear in its weights: it falls by Σ_k α_k u_k,
where u_k is the fall along the update of client k. The noise of the updates acts against that; its variance
is proportional to Σ_k α_k². So the policy's model is expected to be better by m = Σ_k d_k q_k − c e, with q
and c ≥ 0 learnt up to a common scale, and the expected reward is modelled as tanh(m / 2). θ and γ minimise,
over the memory of comparisons,

    mean [ −p log σ(m) − (1−p) log(1 − σ(m)) ] + shrinkage · mean q_k²,   p = (1+r)/2,

the cross-entropy of that model (Bradley and Terry 1952). Its gradient by q_k is −(p − σ(m)) d_k: a policy
gradient on log-weights, with the expected reward as the baseline and the difference from the rival as the
action. Without c e, clients would be blamed for the cost of exploration. The objective does not depend on the
policy that played a comparison, so old rounds in memory need no importance weights. (In the likelihood-ratio
policy gradient, these weights are 0 or enormous after a few steps.) The policy α ∝ s · exp(q) maximises Σ_k
α_k q_k − KL(α ‖ s): without evidence (q = 0) it equals its rival.

A reward that only says "better" is the same for a small and a large advantage. Learning continues all the
same: only large scores explain a small contrast that always wins, so scores grow until the limit or the
shrinkage stops them.
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
    """A round in memory: features [clients, features], contrast [clients]."""

    features: Tensor
    contrast: Tensor
    unevenness: float
    reward: float

    @classmethod
    def between(cls, features: Tensor, played: Tensor, rival: Tensor, reward: float) -> Comparison:
        """Return the comparison of the log-weights that were played with those of the rival."""
        alpha, s = torch.softmax(played, 0), torch.softmax(rival, 0)
        unevenness = len(alpha) * float(alpha.square().sum() - s.square().sum())
        return cls(features, alpha - s, unevenness, reward)


@dataclass(frozen=True)
class PerClient:
    """One network scores each client: five linear layers with ReLU, a bottleneck before the last.

    It learns from mini-batches of past rounds.

    Small and slow by default: a run has hundreds of comparisons, whose outcomes are partly chance, and a
    larger network or rate overfits (with random rewards, scores of ± 4 after 60 rounds at twice the width and
    three times the rate).
    """

    hidden: int = 16
    bottleneck: int = 4
    limit: float = 5.0  # a score changes a client's weight by at most this power of e
    optimizer: Adam = Adam(lr=1e-3, epsilon=1e-6)
    steps: int = 4  # mini-batches after each round
    batch: int = 16  # rounds in a mini-batch
    memory: int = 1000  # rounds; the oldest are dropped
    shrinkage: float = 1e-2

    def __post_init__(self) -> None:
        for name in ("hidden", "bottleneck", "batch", "memory"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy: {name} must be at least 1, not {getattr(self, name)}")
        if self.limit <= 0 or self.shrinkage < 0 or self.steps < 0:
            raise ValueError("policy: limit must be above 0, shrinkage and steps must not be negative")

    def begin(self, num_features: int, seed: int) -> Learnt:
        """Return a network that scores every client 0, and an empty memory."""
        generator = torch.Generator().manual_seed(seed)
        num_inputs, num_outputs = self._ends(num_features)
        sizes = [num_inputs, *[self.hidden] * (NUM_LAYERS - 2), self.bottleneck, num_outputs]
        network: Tensors = {}
        for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            normal = torch.randn(fan_out, fan_in, generator=generator, dtype=torch.float64)
            gain = math.sqrt(2 / fan_in) if layer < NUM_LAYERS - 1 else 0.0  # He et al. 2015
            network[f"{layer}.weight"] = gain * normal
            network[f"{layer}.bias"] = torch.zeros(fan_out, dtype=torch.float64)
        network["price"] = torch.zeros((), dtype=torch.float64)
        return {"network": network, "opt": None, "duels": empty_memory(num_features)}

    def _ends(self, num_features: int) -> tuple[int, int]:
        """Return the numbers of the network's inputs and outputs."""
        return num_features, 1

    def score(self, learnt: Learnt, features: Tensor) -> Tensor:
        """Return the scores [clients] of a new cohort, given features [clients, features]."""
        return self.scores(learnt["network"], self.inputs(learnt, features))

    def inputs(self, learnt: Learnt, features: Tensor) -> Tensor:
        """Return features [clients, features] of a new cohort, standardised by the memory and themselves."""
        return standardise(features, torch.cat([clients_of(learnt["duels"]), features]))

    def scores(self, network: Tensors, inputs: Tensor) -> Tensor:
        """Return one score for each client [..., clients], given standardised features, 0 for padding."""
        return self.limit * torch.tanh(self._run(network, inputs).squeeze(-1) / self.limit)

    def _run(self, network: Tensors, values: Tensor) -> Tensor:
        """Return the network's outputs [..., outputs] for its inputs [..., inputs]."""
        for layer in range(NUM_LAYERS):
            values = F.linear(values, network[f"{layer}.weight"], network[f"{layer}.bias"])
            if layer < NUM_LAYERS - 1:
                values = F.relu(values)
        return values

    def learn(self, learnt: Learnt, comparison: Comparison, seed: int) -> Learnt:
        """Add a comparison to the memory, then take `steps` steps on mini-batches of the memory."""
        memory = remember(learnt["duels"], comparison, self.memory)
        features = standardise(memory["features"], clients_of(memory)) * presence(memory)[..., None]
        inputs = {**memory, "features": features}
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
        """Return the objective above, over a batch of comparisons."""
        scores = self.scores(network, memory["features"])
        price = F.softplus(network["price"])
        margin = (memory["contrast"] * scores).sum(dim=1) - price * memory["unevenness"]
        target, present = (1 + memory["reward"]) / 2, presence(memory)
        size = (scores.square() * present).sum() / present.sum()
        return F.binary_cross_entropy_with_logits(margin, target) + self.shrinkage * size


@dataclass(frozen=True)
class PerCohort(PerClient):
    """The paper's network (§4.1): one input for each feature of each of N clients, and N outputs.

    Clients are known by their position in a cohort. If fewer than N answer, the last inputs are 0. The
    features that compare a client with its cohort are left out: this network sees the whole cohort.
    """

    num_clients: int = 10  # N: the size of a cohort

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_clients < 1:
            raise ValueError(f"policy: num_clients must be at least 1, not {self.num_clients}")

    def _ends(self, num_features: int) -> tuple[int, int]:
        return self.num_clients * (num_features // 2), self.num_clients

    def scores(self, network: Tensors, inputs: Tensor) -> Tensor:
        count = inputs.shape[-2]
        if count > self.num_clients:
            raise ValueError(f"the policy's network is for {self.num_clients} clients, but {count} answered")
        own = inputs[..., : inputs.shape[-1] // 2]
        padded = F.pad(own, (0, 0, 0, self.num_clients - count)).flatten(-2)
        return self.limit * torch.tanh(self._run(network, padded)[..., :count] / self.limit)


Policy = PerClient | PerCohort


def standardise(values: Tensor, reference: Tensor) -> Tensor:
    """Subtract the mean of reference [rows, features] from values [..., features], divide by its deviation.

    A feature that is the same in all rows becomes 0.

    >>> standardise(torch.tensor([[1.0, 7.0], [3.0, 7.0]]), torch.tensor([[1.0, 7.0], [3.0, 7.0]]))
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """
    mean, deviation = reference.mean(dim=0), reference.std(dim=0, correction=0)
    varies = deviation > 1e-6 * (1 + mean.abs())
    return torch.where(varies, (values - mean) / deviation.where(varies, torch.ones_like(mean)), 0.0)


def empty_memory(num_features: int) -> Tensors:
    """Return a memory without comparisons. They are padded to the largest cohort; padding has contrast 0."""
    shapes = {"features": (0, 0, num_features), "contrast": (0, 0), "unevenness": (0,), "reward": (0,)}
    memory = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    return {**memory, "count": torch.zeros(0, dtype=torch.int64)}


def presence(memory: Tensors) -> Tensor:
    """Return a mask [rounds, clients]: true for clients, false for padding."""
    return torch.arange(memory["contrast"].shape[1]) < memory["count"][:, None]


def clients_of(memory: Tensors) -> Tensor:
    """Return the features of all clients in the memory [clients, features]."""
    return memory["features"][presence(memory)]


def remember(memory: Tensors, comparison: Comparison, capacity: int) -> Tensors:
    """Return the memory with one more comparison, without the oldest ones above the capacity."""
    count = len(comparison.contrast)
    width = max(count, memory["contrast"].shape[1])
    new = {n: torch.as_tensor(v, dtype=torch.float64)[None] for n, v in vars(comparison).items()}
    new["count"] = torch.tensor([count])

    def padded(values: Tensor) -> Tensor:
        """Pad the dimension of clients with zeros."""
        more = () if values.dim() == 1 else (0, 0) * (values.dim() - 2) + (0, width - values.shape[1])
        return F.pad(values, more)

    return {n: torch.cat([padded(old), padded(new[n])])[-capacity:].clone() for n, old in memory.items()}
