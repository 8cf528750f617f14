"""MLflow: a listener that writes the numbers of runs to a tracking server or folder."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.records.listener import Listen, RunInfo, client_scalars, error_rates, numbers_of_run
from antiphon.records.writer import Listener, scalars_of

BATCH = 1000  # metrics in a call, the most that a server takes


def mlflow_listener(experiment: str, *, tracking_uri: str | None = None, clients: bool = False) -> Listen:
    """Return a listener for `antiphon.run` that writes the numbers of each round to MLflow.

    Each run of the experiment becomes a run there. Only numbers are sent, and the names of the run and the
    recipe: the scalars of TensorBoard, the seed, the numbers among the settings of the algorithm and the
    rounds, and the error rates at the end. The package mlflow is needed: pip install 'antiphon[mlflow]'.

    Args:
        experiment: The name of the experiment there; it is created if it does not exist.
        tracking_uri: The server, or a database such as sqlite:///runs.db; by default MLflow's own.
        clients: Also send the numbers of each client, with its name.

    Example:
        sink = antiphon.mlflow_listener("speech", tracking_uri="sqlite:///runs.db")
        antiphon.run("dga", data="speech", out="out", listeners=[sink])
    """
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        raise ValueError(f"no package mlflow ({error}): pip install 'antiphon[mlflow]'") from None
    try:
        # This client adds no tags of its own; mlflow.start_run would add the user, the script and the commit.
        client = MlflowClient(tracking_uri=tracking_uri)
    except ImportError as error:
        raise ValueError(
            f"MLflow cannot use {tracking_uri or 'its own database'} ({error}): pip install mlflow, "
            "or name a server (tracking_uri); the extra [mlflow] is enough for a server"
        ) from None

    def listen(run: RunInfo) -> Listener:
        existing = client.get_experiment_by_name(experiment)
        number = existing.experiment_id if existing else client.create_experiment(experiment)
        created = client.create_run(number, run_name=run.name, tags={"recipe": run.recipe})
        for key, value in numbers_of_run(run).items():
            client.log_param(created.info.run_id, key, value)
        return _MlflowRun(client, created.info.run_id, clients)

    return listen


@dataclass(frozen=True)
class _MlflowRun(Listener):
    client: Any
    run_id: str
    clients: bool

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        self._log(scalars_of(entry, clock), entry["round"])
        if self.clients:
            self._log(client_scalars(entry), entry["round"])

    def ended(self, scores: Mapping[str, Any] | None) -> None:
        if scores is not None:
            self._log(error_rates(scores), scores.get("round", 0))
        self.client.set_terminated(self.run_id, "FAILED" if scores is None else "FINISHED")

    def _log(self, scalars: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(metric_name(tag), value, now, step) for tag, value in scalars.items()]
        for start in range(0, len(metrics), BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + BATCH])


def metric_name(tag: str) -> str:
    """Replace characters that MLflow refuses in names.

    >>> metric_name("clients/ada@home/loss")
    'clients/ada_home/loss'
    """
    return re.sub(r"[^\w\-. :/]", "_", tag)
