"""Flower: its FedAvg on its simulation, clients in as many Ray actors as there are cores."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workload import Gate, Workload, load, local_sgd

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One client's work, as in Flower's quickstart; the workload is read once in each actor."""
    config = message.content["config"]
    workload = load(config["folder"])
    model = workload.model
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = local_sgd(model, workload.batches[config["client"]], workload.lr, workload.epochs)
    metrics = MetricRecord({"loss": loss, "num-examples": workload.num_samples})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class SameCohorts(FedAvg):
    """Draws nodes as Flower does, then tells each which client of the cohort it is."""

    def __init__(self, workload: Workload, gate: Gate) -> None:
        num_clients, cohort = workload.num_clients, len(workload.cohorts[0])
        super().__init__(
            fraction_train=cohort / num_clients,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=num_clients,
        )
        self.workload, self.gate = workload, gate

    def _construct_messages(
        self, record: RecordDict, node_ids: list[int], message_type: str
    ) -> Iterable[Message]:
        config = record["config"]
        for node, client in zip(node_ids, self.workload.cohorts[config["server-round"] - 1], strict=True):
            own = RecordDict(
                {"arrays": record["arrays"], "config": ConfigRecord({**config, "client": client})}
            )
            yield Message(content=own, message_type=message_type, dst_node_id=node)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        assert len(replies) == len(self.workload.cohorts[0]), "a client did not answer"
        aggregate = super().aggregate_train(server_round, replies)
        self.gate.lap()
        return aggregate


def main(folder: str, out: Path) -> None:
    workload = load(folder)
    server_app, gate = ServerApp(), Gate(workload, out)

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        result = SameCohorts(workload, gate).start(
            grid,
            ArrayRecord(workload.params),
            num_rounds=len(workload.cohorts),
            train_config=ConfigRecord({"folder": folder}),
        )
        gate.write(result.arrays.to_torch_state_dict(), version=version("flwr"))

    one_core_each = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, workload.num_clients, backend_config=one_core_each)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
