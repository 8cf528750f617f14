"""Flower's own FedAvg between machines: a SuperLink with TLS, SuperNodes, and an app like its quickstart.

    python deployed_flower.py FOLDER PORT SITE-PORT PARAMETERS ROUNDS

PORT is the server's; sites connect to SITE-PORT, which may be that of a proxy. Writes the moments at which
rounds ended to FOLDER/rounds.json.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

NUM_SITES, NUM_TENSORS = 3, 30
LIMIT = 900.0  # seconds: a run that has failed does not end by itself
PROJECT = """
[project]
name = "deployed"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "deployed.app:server_app"
clientapp = "deployed.app:client_app"
[tool.flwr.app.config]
parameters = 0
rounds = 0
out = ""
"""
APP = """
import json, random, time
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client_app = ClientApp()
server_app = ServerApp()

@client_app.train()
def train(message, context):
    arrays = message.content["arrays"].to_torch_state_dict()
    # Flower sends equal arrays once: those of two layers, or of two sites, are not equal in training.
    arrays = {name: array + random.random() for name, array in arrays.items()}
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)

@server_app.main()
def main(grid, context):
    config = context.run_config
    size = int(config["parameters"]) // NUM_TENSORS
    params = {f"layer{k}": torch.full((size,), float(k)) for k in range(NUM_TENSORS)}
    ends = []
    class Timed(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            assert len(replies) == NUM_SITES and not any(reply.has_error() for reply in replies)
            aggregate = super().aggregate_train(server_round, replies)
            ends.append(time.time())
            return aggregate
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes=NUM_SITES, min_available_nodes=NUM_SITES)
    result = strategy.start(grid, ArrayRecord(params), num_rounds=int(config["rounds"]))
    last = result.arrays.to_torch_state_dict()
    grown = [last[name] - params[name] for name in params]
    assert all(bool(((0 < value) & (value < config["rounds"])).all()) for value in grown)
    with open(config["out"], "w") as file:
        json.dump(ends, file)
"""


def write_app(folder: Path) -> Path:
    app = folder / "app"
    (app / "deployed").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "deployed" / "__init__.py").write_text("")
    constants = f"NUM_SITES, NUM_TENSORS = {NUM_SITES}, {NUM_TENSORS}\n"
    (app / "deployed" / "app.py").write_text(constants + APP)
    return app


def write_certificates(folder: Path) -> None:
    """A certificate authority, and a certificate of the server."""
    commands = [
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=benchmark",
        "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 2 "
        "-extfile names.txt",
    ]
    (folder / "names.txt").write_text("subjectAltName=IP:127.0.0.1\n")
    for command in commands:
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)


def main(folder: Path, port: int, site_port: int, parameters: int, rounds: int) -> None:
    bin_ = Path(sys.executable).parent
    folder.mkdir(parents=True, exist_ok=True)
    write_certificates(folder)
    app, out = write_app(folder), folder / "rounds.json"
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "here"\n[superlink.here]\n'
        f'address = "127.0.0.1:{port}"\nroot-certificates = "{folder / "ca.crt"}"\n'
    )
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{bin_}:{os.environ['PATH']}",
    }
    tls = [f"--ssl-certfile={folder}/server.crt", f"--ssl-keyfile={folder}/server.key"]
    server = [f"{bin_}/flower-superlink", *tls, f"--ssl-ca-certfile={folder}/ca.crt", "--port", str(port)]
    server += ["--disable-runtime-dependency-installation"]
    site = [f"{bin_}/flower-supernode", f"--root-certificates={folder}/ca.crt"]
    processes = []
    with (folder / "log.txt").open("wb") as log:
        try:
            processes.append(subprocess.Popen(server, env=environment, stdout=log, stderr=log))
            time.sleep(10)
            for number in range(NUM_SITES):
                own = ["--superlink", f"127.0.0.1:{site_port}", "--port", str(port + 1 + number)]
                command = [*site, *own]
                processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            time.sleep(10)
            run = ["-c", f'parameters={parameters} rounds={rounds} out="{out}"']
            command = [f"{bin_}/flwr", "run", str(app), "here", *run]
            subprocess.run(command, env=environment, stdout=log, stderr=log, check=True)
            end = time.monotonic() + LIMIT
            while not out.exists() or not out.read_text():
                if time.monotonic() > end:
                    raise RuntimeError(f"Flower did not finish in {LIMIT:g} s: see {folder / 'log.txt'}")
                if any(process.poll() is not None for process in processes):
                    raise RuntimeError(f"a process of Flower has ended: see {folder / 'log.txt'}")
                time.sleep(1)
        finally:
            for process in reversed(processes):
                if process.poll() is None:
                    for child in psutil.Process(process.pid).children(recursive=True):
                        child.kill()
                    process.kill()
                    process.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:6]))
