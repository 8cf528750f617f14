"""Attacks that find the speaker of a model update, and what may be done to updates before they are seen.

The attacker has updates of known speakers (`enrolled`) and scores every speaker for an unknown update:

cosine      each tensor of an update is scaled to length 1; cosine with the mean update of each speaker
ridge       one-against-all ridge regression on whole updates, in its dual form: nothing is projected away
matched     the likelihood of an update that is the speaker's mean update with Gaussian noise
frames      no enrolled updates, recordings only: the gradient of the first linear layer is Σ_t g_t x_tᵀ and
            that of its bias Σ_t g_t. So (∇W)ᵀ ∇b / |∇b|² is a weighted mean of the frames x_t; it is compared
            with the mean frame of each speaker. (T. Dang et al., "A Method to Reveal Speaker Identity in
            Distributed ASR Training, and How to Counter It", arXiv:2104.07815, reconstruct frames and then
            find the speaker.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from antiphon.core import Tensors
from antiphon.privacy.accounting import Budget
from antiphon.privacy.participation import RoundRobin
from antiphon.privacy.update_accounting import BandedPlan
from antiphon.tasks.update_clipping import EachLayer, WholeUpdate

BOUND, DELTA, RECOMMENDED, WEAKER = 0.3, 1e-9, 7.2, 50.0
EXTRAPOLATED = 12 / 1_000  # runs of at_scale.py: 12 clients have the noise in the mean of 1,000

WEIGHT, BIAS = "encoder.project.weight", "encoder.project.bias"
RIDGES = tuple(10.0**power for power in range(-4, 3))  # times the mean of the kernel's diagonal


# --- What is done to an update --------------------------------------------------------------------


def pruned(update: Tensors, share: float) -> Tensors:
    """Keep the entries of the largest size, `share` of all; the others are zero."""
    sizes = torch.cat([tensor.abs().flatten() for tensor in update.values()])
    kept = max(1, round(share * len(sizes)))
    limit = sizes.kthvalue(len(sizes) - kept + 1).values
    return {name: torch.where(tensor.abs() >= limit, tensor, 0.0) for name, tensor in update.items()}


def rounded(update: Tensors, generator: torch.Generator, levels: int = 127) -> Tensors:
    """Round to whole multiples of max / levels in each tensor, up or down at random: right on average."""
    found = {}
    for name, tensor in update.items():
        step = tensor.abs().max().clamp(min=1e-30) / levels
        found[name] = step * torch.floor(tensor / step + torch.rand(tensor.shape, generator=generator))
    return found


def signs(update: Tensors) -> Tensors:
    """Keep the sign of each entry, and the mean size of each tensor."""
    return {name: tensor.sign() * tensor.abs().mean() for name, tensor in update.items()}


@dataclass(frozen=True)
class Setting:
    """What the attacker sees of updates: changed ones, with noise of a standard deviation."""

    name: str
    change: Callable[[Tensors], Tensors]
    deviation: float = 0.0
    part: str = "full"
    is_tried_in_cohorts: bool = False
    is_inverted: bool = False  # whether frames are looked for, too


def settings_for(seed: int) -> list[Setting]:
    generator = torch.Generator().manual_seed(seed)
    layers, whole = EachLayer(BOUND), WholeUpdate(BOUND)
    plan = BandedPlan(RoundRobin(100), rounds=40, bands=1)  # one turn of each client
    recommended, weaker = (BOUND * plan.within(Budget(e, DELTA)).multiplier for e in (RECOMMENDED, WEAKER))

    def only_output(update: Tensors) -> Tensors:
        return {name: tensor for name, tensor in update.items() if name.startswith("output.")}

    return [
        Setting("plain", dict, is_tried_in_cohorts=True, is_inverted=True),
        Setting("clipped, whole update", whole),
        Setting("clipped, each layer", layers, is_tried_in_cohorts=True),
        Setting("output layer only", only_output),
        Setting("largest 10 % of entries", partial(pruned, share=0.1)),
        Setting("largest 1 % of entries", partial(pruned, share=0.01)),
        Setting("8 bits, random rounding", partial(rounded, generator=generator)),
        Setting("1 bit: signs", signs),
        Setting("low rank (LoRA, rank 8)", dict, part="low rank"),
        Setting(
            "noise of the 12-client runs (ε = 7.2 extrapolated)",
            layers,
            EXTRAPOLATED * recommended,
            is_inverted=True,
        ),
        Setting(f"noise, ε = {WEAKER:g}", layers, weaker),
        Setting(
            f"noise, ε = {RECOMMENDED:g} (recommended)",
            layers,
            recommended,
            is_tried_in_cohorts=True,
            is_inverted=True,
        ),
        Setting(f"noise, ε = {RECOMMENDED:g}, clipped whole", whole, recommended),
        Setting(f"low rank, noise, ε = {RECOMMENDED:g}", whole, recommended, "low rank"),
    ]


# --- Who spoke ------------------------------------------------------------------------------------


def flat(updates: Sequence[Tensors]) -> Tensor:
    """Return updates as rows [n, d]."""
    return torch.stack([torch.cat([t.flatten() for t in update.values()]) for update in updates])


def unit_layers(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Scale each tensor of each update to length 1."""
    return torch.cat([torch.nn.functional.normalize(part, dim=1) for part in rows.split(list(sizes), 1)], 1)


def means_by(rows: Tensor, labels: Tensor, num_speakers: int) -> Tensor:
    """Return the mean row of each speaker [N, d]."""
    sums = torch.zeros(num_speakers, rows.shape[1], dtype=rows.dtype).index_add_(0, labels, rows)
    return sums / labels.bincount(minlength=num_speakers).clamp(min=1)[:, None]


def cosine_scores(enrolled: Tensor, labels: Tensor, unknown: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the score of each speaker for each unknown update [m, N]."""
    enrolled, unknown = unit_layers(enrolled, sizes), unit_layers(unknown, sizes)
    mean = enrolled.mean(0)
    speakers = means_by(enrolled - mean, labels, int(labels.max()) + 1)
    normalize = torch.nn.functional.normalize
    return normalize(unknown - mean, dim=1) @ normalize(speakers, dim=1).T


def ridge_scores(enrolled: Tensor, labels: Tensor, unknown: Tensor) -> Tensor:
    """Return scores [m, N]; the penalty has the best leave-one-out guesses of enrolled updates."""
    mean = enrolled.mean(0)
    centred = enrolled - mean
    kernel = (centred @ centred.T).double()
    targets = torch.nn.functional.one_hot(labels).double()
    targets -= targets.mean(0)
    values, vectors = torch.linalg.eigh(kernel)
    best, weights = -1, torch.zeros_like(targets)
    for ridge in RIDGES:
        inverse = (vectors / (values.clamp(min=0) + ridge * kernel.diagonal().mean())) @ vectors.T
        dual = inverse @ targets
        left_out = targets - dual / inverse.diagonal()[:, None]
        right = int((left_out.argmax(1) == labels).sum())
        if right > best:
            best, weights = right, dual
    return ((unknown - mean) @ centred.T).double() @ weights


def matched_scores(enrolled: Tensor, labels: Tensor, unknown: Tensor) -> Tensor:
    """Return log likelihoods [m, N], up to a scale and a constant of each update."""
    mean = enrolled.mean(0)
    speakers = means_by(enrolled - mean, labels, int(labels.max()) + 1)
    return (unknown - mean) @ speakers.T - speakers.square().sum(1) / 2


def mean_frame(update: Tensors) -> Tensor:
    """Return a weighted mean of the frames that an update was trained on [D]."""
    weight, bias = update[WEIGHT], update[BIAS]
    return weight.T @ bias / bias.square().sum().clamp(min=1e-30)


def frame_scores(speakers: Tensor, unknown: Sequence[Tensors]) -> Tensor:
    """Score mean frames of speakers [N, D] for updates: cosines, after each value is standardised [m, N]."""
    found = torch.stack([mean_frame(update) for update in unknown])
    mean, deviation = speakers.mean(0), speakers.std(0).clamp(min=1e-6)
    return pairwise_cosine((found - mean) / deviation, (speakers - mean) / deviation)


def pairwise_cosine(left: Tensor, right: Tensor) -> Tensor:
    normalize = torch.nn.functional.normalize
    return normalize(left, dim=1) @ normalize(right, dim=1).T


Scores = Callable[[Tensor, Tensor, Tensor], Tensor]


def attackers(sizes: Sequence[int]) -> dict[str, Scores]:
    """Return the attackers that use enrolled updates: (enrolled, labels, unknown) -> scores."""
    return {
        "cosine": lambda enrolled, labels, unknown: cosine_scores(enrolled, labels, unknown, sizes),
        "ridge": ridge_scores,
        "matched": matched_scores,
    }


def member_wins(scores: Tensor, members: Tensor) -> Tensor:
    """Return how often a member of the cohort has a higher score than another speaker [m]; ties are half.

    scores [m, N], members [m, N] bool. Guessing gives ½.
    """
    found = []
    for row, inside in zip(scores, members, strict=True):
        differences = row[inside][:, None] - row[~inside][None]
        found.append(((differences > 0).double() + (differences == 0).double() / 2).mean())
    return torch.stack(found)
