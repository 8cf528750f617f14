"""What a private round releases: the sum of clipped updates with noise, over the planned cohort."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from antiphon.core import Tensors, Update
from antiphon.privacy.correlated_noise import noise_rows
from antiphon.privacy.noise_key import derived_key
from antiphon.privacy.update_accounting import Plan
from antiphon.privacy.update_ledger import check_release


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

    @property
    def deviation(self) -> float:
        """The standard deviation of the independent noise z, in an entry of the mean."""
        return self.plan.deviation * self.bound / self.cohort

    def noise_id(self, like: Tensors) -> str:
        """Return a digest of all that the noise of a run depends on."""
        layout = [[name, list(tensor.shape)] for name, tensor in like.items()]
        facts = [self.plan.coefficients, self.plan.deviation, self.bound, self.cohort, layout]
        return hashlib.blake2b(json.dumps(facts).encode(), key=self.key, digest_size=16).hexdigest()

    def mean(self, update: Update, like: Tensors, largest_weight: float) -> Tensors:
        """Return (sum of the updates + noise) / planned number of clients.

        The sum counts a client by its weight over the largest one. An empty update gives noise alone.
        """
        count = 0.0 if update.is_empty else math.exp(update.log_weight) / largest_weight
        sums = {name: count * update.mean[name].double() for name in like} if update.mean else {}
        if not self.is_simulated:
            arrays = {name: total.cpu().numpy() for name, total in sums.items()}
            check_release(Path(self.folder), derived_key(self.key, "releases"), self.round, arrays)
        size = sum(tensor.numel() for tensor in like.values())
        rows = noise_rows(derived_key(self.key, "noise"), self.plan.coefficients, size, self.folder or None)
        noise = torch.from_numpy(rows.row(self.round).copy())
        mean, at = {}, 0
        for name, tensor in like.items():
            part = self.deviation * noise[at : at + tensor.numel()].view(tensor.shape).to(tensor.device)
            mean[name] = (part + sums[name] / self.cohort if sums else part).to(tensor.dtype)
            at += tensor.numel()
        return mean
