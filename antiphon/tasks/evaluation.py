"""Error rates of a model over clients: evaluation is one more `reduce`."""

from __future__ import annotations

import random
from collections.abc import Sequence

from antiphon.core import Pool, Task, Tensors
from antiphon.seeding import derive
from antiphon.server.weighting import Uniform


def measure(pool: Pool, params: Tensors, clients: Sequence[str], held_out: bool = False) -> dict[str, float]:
    """Return WER and CER over all words and characters of the clients that answered.

    With `held_out`, on the utterances that each client does not train on.
    """
    config = {"held_out": True} if held_out else {}
    reports = pool.reduce(Task("evaluate", params, config), clients, Uniform()).reports
    total = {key: sum(report.stats[key] for report in reports) for key in ("words", "characters")}
    errors = {key: sum(report.stats[f"{key}_wrong"] for report in reports) for key in total}
    return {
        "wer": errors["words"] / max(1.0, total["words"]),
        "cer": errors["characters"] / max(1.0, total["characters"]),
    }


def measuring_clients(clients: Sequence[str], names: Sequence[str] = (), num: int = 0) -> tuple[str, ...]:
    """Return those of the validation clients that measure models in a round: `names`, or `num` of all.

    Always the same ones, in every round and run; 0: all of them.
    """
    if unknown := sorted(set(names) - set(clients)):
        raise ValueError(f"validation: no client {unknown[0]!r}; there are {', '.join(sorted(clients))}")
    if num > len(clients):
        raise ValueError(f"num_validation is {num} but there are {len(clients)} clients")
    drawn = random.Random(derive(0, "validation")).sample(sorted(clients), num or len(clients))
    return tuple(names) or tuple(sorted(drawn))
