"""Weights by word error rate: a client whose model recognises held-out speech better counts more.

Y. Gao, T. Parcollet, S. Zaiem, J. Fernandez-Marques, P. P. B. de Gusmao, D. J. Beutel, N. D. Lane,
"End-to-End Speech Recognition from Federated Acoustic Models", ICASSP 2022, arXiv:2104.14297: WER-based
aggregation; and the authors' code, github.com/yan-gao-GY/Flower-SpeechBrain.

| authors' code                              | here                                                       |
| ------------------------------------------ | ---------------------------------------------------------- |
| WER of client k in per cent, at most 100   | `measure` of w − Δ_k on `validation`; at most 1            |
| weight exp(100 − WER), over the sum of all | `log_weight`: −`beta` · WER, with `beta` = 100             |
| n_k is not used                            | `inner.weighting` must be uniform                          |

Deviations.
- In the authors' code, each client measures its own model on its own validation set, and reports the number.
  Here the server measures every client's model on its validation speakers. A client cannot lie about it. It
  takes as many evaluations in a round as there are clients, and the server must see single updates.
- The aggregate is the mean of Δ_k, and the server's optimiser takes it like any aggregate. The training on
  the server after each round, which the authors add, is `rehearsed`.
- The validation speakers also choose the best round of the run. So their score of it is too good; test
  speakers are others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from antiphon.algorithms.fedavg import FedAvg, hierarchical
from antiphon.algorithms.trimmed_mean import check_uniform, single_update
from antiphon.core import ALGORITHMS, Metrics, Pool, ServerState, Tensors
from antiphon.server.run_context import RunContext
from antiphon.tasks.evaluation import measure, measuring_clients


@ALGORITHMS.register
@dataclass(frozen=True)
class ValidationWer:
    """Federated averaging with weights by word error rates of the clients' models on held-out speech."""

    inner: FedAvg = hierarchical()
    beta: float = 100.0  # 100: a client with one point more of WER has 1/e of the weight; 0: equal weights
    num_validation: int = 0  # number of clients that measure the models; 0: all validation clients
    validation: tuple[str, ...] = ()  # their names; empty: drawn when the run begins
    collects: ClassVar[bool] = True  # it needs single updates, which secure aggregation hides
    is_for_whole_models: ClassVar[bool] = True  # `antiphon prune` goes on with the inner algorithm

    def __post_init__(self) -> None:
        for name in ("beta", "num_validation"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        check_uniform(self.inner, "weighting by validation WER")

    def prepare(self, context: RunContext) -> ValidationWer:
        """Choose the validation clients that measure, always the same ones."""
        chosen = measuring_clients(context.valid, self.validation, self.num_validation)
        return replace(self, validation=chosen)

    def init(self, params: Tensors) -> ServerState:
        return self.inner.init(params)

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        if not self.validation:
            raise ValueError("validation_wer has no validation clients: call run_context.prepare first")
        collected = pool.collect(self.inner.task(state), cohort)
        rates = []
        for place in range(len(collected.reports)):
            delta = single_update(collected, place)
            moved = {name: state.params[name] - d for name, d in delta.items()}
            rates.append(measure(pool, {**state.params, **moved}, self.validation)["wer"])
        mean = collected.combine([self.log_weight(rate) for rate in rates]).mean
        state, metrics = self.inner.step(state, mean)
        return state, {**metrics, "best_wer": min(rates), "worst_wer": max(rates)}

    def log_weight(self, wer: float) -> float:
        """Return the log-weight of a client whose model has this word error rate."""
        return -self.beta * min(wer, 1.0)
