"""What a private round releases: the sum of clipped updates with noise, over the planned cohort."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from antiphon.core import Tensors, Update
from antiphon.privacy.correlated_noise import noise_rows
from antiphon.privacy.distributed_noise import DistributedPlan
from antiphon.privacy.noise_key import derived_key
from antiphon.privacy.update_accounting import Plan
from antiphon.privacy.update_ledger import check_release
from antiphon.tasks.update_clipping import WITHIN


@dataclass(frozen=True)
class RoundRelease:
    """The noise of one round."""

    plan: Plan
    bound: float  # the l2 norm of a clipped update, at most
    cohort: float  # the planned number of clients
    round: int
    key: bytes
    folder: str  # of the run; "" if it has none
    is_simulated: bool
    first_bound: float  # of the first round
    count_deviation: float = 0.0  # of the noise on the count of an adaptive bound; 0: there is no count

    @property
    def has_shares(self) -> bool:
        """Whether the noise arrives with the updates: then the server adds none."""
        return isinstance(self.plan, DistributedPlan)

    @property
    def relative_deviation(self) -> float:
        """The standard deviation of the independent noise z on the sum, in bounds.

        Updates and counts are one release: (z_Δ⁻² + (2 σ_b)⁻²)^(−½) is the deviation of the plan.
        """
        shares = (self.plan.deviation / (2 * self.count_deviation)) ** 2 if self.count_deviation else 0.0
        return self.plan.deviation / math.sqrt(1 - shares)

    @property
    def deviation(self) -> float:
        """The standard deviation of the independent noise z, in an entry of the mean."""
        return self.relative_deviation * self.bound / self.cohort

    def noise_id(self, like: Tensors) -> str:
        """Return a digest of all that the noise of a run depends on."""
        layout = [[name, list(tensor.shape)] for name, tensor in like.items()]
        facts = [self.plan.coefficients, self.plan.deviation, self.first_bound, self.cohort, layout]
        facts += [self.count_deviation] if self.count_deviation else []
        facts += ["shares", self.plan.colluding] if isinstance(self.plan, DistributedPlan) else []
        return hashlib.blake2b(json.dumps(facts).encode(), key=self.key, digest_size=16).hexdigest()

    def mean(self, update: Update, like: Tensors, largest_weight: float, count: float = 0.0) -> Tensors:
        """Return (sum of the updates + noise) / planned number of clients.

        The sum counts a client by its weight over the largest one. An empty update gives noise alone; if
        clients add the noise, it gives zeros.
        count: what `share_within` is asked for after it.
        """
        weight = 0.0 if update.is_empty else math.exp(update.log_weight) / largest_weight
        names = like if update.mean else ()
        sums = {name: update.mean[name].to(torch.float64, copy=True).mul_(weight) for name in names}
        if not self.is_simulated:
            arrays = {name: total.cpu().numpy() for name, total in sums.items()}
            if self.count_deviation:
                arrays[WITHIN] = np.array([count])
            check_release(Path(self.folder), derived_key(self.key, "releases"), self.round, arrays)
        noise, mean, at = torch.from_numpy(self._row(like)), {}, 0
        for name, tensor in like.items():
            part = noise[at : at + tensor.numel()].view(tensor.shape).to(tensor.device).mul_(self.deviation)
            if sums:
                part += sums[name].div_(self.cohort)
            mean[name] = part.to(tensor.dtype)
            at += tensor.numel()
        return mean

    def share_within(self, like: Tensors, count: float) -> float:
        """Return the noised share of clients within the bound, from Σ (b − ½)."""
        noised = count + self.count_deviation * float(self._row(like)[-1])
        return min(1.0, max(0.0, 0.5 + noised / self.cohort))

    def _row(self, like: Tensors) -> np.ndarray:
        """Return the noise of the round: an entry for each parameter, and one for the count."""
        size = sum(tensor.numel() for tensor in like.values()) + bool(self.count_deviation)
        if self.has_shares:
            return np.zeros(size)
        rows = noise_rows(derived_key(self.key, "noise"), self.plan.matrix, size, self.folder or None)
        return rows.row(self.round)
