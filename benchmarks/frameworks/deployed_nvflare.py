"""NVFLARE's own FedAvg recipe between machines: provisioned kits, mutual TLS, its in-process client API.

    python deployed_nvflare.py FOLDER PORT SITE-PORT PARAMETERS ROUNDS

PORT is the server's; sites connect to SITE-PORT, which may be that of a proxy. Writes the moments at which a
site has received the model of each round to FOLDER/rounds.json.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

NUM_SITES, NUM_TENSORS = 3, 30
ADMIN = "admin@benchmark.org"
SCRIPT = """
import json, sys, time
import nvflare.client as flare
from nvflare.app_common.abstract.fl_model import FLModel

flare.init()
moments = []
while flare.is_running():
    model = flare.receive()
    if model is None:
        break
    moments.append(time.time())
    if flare.get_site_name() == "site-1":
        with open(sys.argv[1], "w") as file:
            json.dump(moments, file)
    params = {name: value + 1 for name, value in model.params.items()}
    flare.send(FLModel(params=params, metrics={"accuracy": 0.0}))
"""


class Layers(nn.Module):
    """A model of `parameters` numbers in 30 tensors."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.parameters_ = parameters
        self.layers = nn.ParameterList(torch.zeros(parameters // NUM_TENSORS) for _ in range(NUM_TENSORS))


def provision(folder: Path, port: int, site_port: int, environment: dict[str, str]) -> Path:
    impl = "nvflare.lighter.impl."
    people: list[dict[str, Any]] = [{"name": "localhost", "type": "server"}]
    people[0] |= {"fed_learn_port": port, "admin_port": port}
    people += [{"name": f"site-{number}", "type": "client"} for number in range(1, NUM_SITES + 1)]
    people.append({"name": ADMIN, "type": "admin", "role": "project_admin"})
    overseer = {
        "path": "nvflare.ha.dummy_overseer_agent.DummyOverseerAgent",
        "overseer_exists": False,
        "args": {"sp_end_point": f"localhost:{site_port}:{site_port}"},
    }
    static = {"config_folder": "config", "scheme": "grpc", "overseer_agent": overseer}
    project = {
        "api_version": 3,
        "name": "benchmark",
        "description": "benchmark",
        "participants": [{**person, "org": "benchmark"} for person in people],
        "builders": [
            {"path": f"{impl}workspace.WorkspaceBuilder"},
            {"path": f"{impl}static_file.StaticFileBuilder", "args": static},
            {"path": f"{impl}cert.CertBuilder"},
            {"path": f"{impl}signature.SignatureBuilder"},
        ],
    }
    (folder / "project.yml").write_text(json.dumps(project))  # JSON is YAML
    command = ["nvflare", "provision", "-p", "project.yml", "-w", "ws", "--force"]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    kits = folder / "ws" / "benchmark" / "prod_00"
    local = kits / "localhost" / "local"
    resources = (local / "resources.json.default").read_text().replace("/tmp/nvflare", str(folder / "store"))
    (local / "resources.json").write_text(resources)
    return kits


def submit(folder: Path, kits: Path, parameters: int, rounds: int) -> None:
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
    from nvflare.recipe import ProdEnv

    script = folder / "site_script.py"
    script.write_text(SCRIPT)
    recipe = FedAvgRecipe(
        name="fedavg",
        model={"class_path": "deployed_nvflare.Layers", "args": {"parameters": parameters}},
        min_clients=NUM_SITES,
        num_rounds=rounds,
        train_script=str(script),
        train_args=str(folder / "rounds.json"),
    )
    environment = ProdEnv(startup_kit_location=str(kits / ADMIN), login_timeout=30.0, username=ADMIN)
    recipe.execute(environment).get_status()


def main(folder: Path, port: int, site_port: int, parameters: int, rounds: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    here = str(Path(__file__).parent.resolve())
    environment = {**os.environ, "HOME": str(folder), "OMP_NUM_THREADS": "1", "PYTHONPATH": here}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kits, processes = provision(folder, port, site_port, environment), []
    out = folder / "rounds.json"
    with (folder / "log.txt").open("wb") as log:
        try:
            for name in ("localhost", *(f"site-{number}" for number in range(1, NUM_SITES + 1))):
                command = ["bash", str(kits / name / "startup" / "sub_start.sh"), "--once"]
                processes.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
                )
                time.sleep(5 if name == "localhost" else 0)
            time.sleep(10)
            submit(folder, kits, parameters, rounds)
            moments: list[float] = []
            while len(moments) < rounds:
                time.sleep(0.5)
                with suppress(OSError, ValueError):
                    moments = json.loads(out.read_text())
        finally:
            import psutil

            for process in processes:
                for child in psutil.Process(process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        child.send_signal(signal.SIGKILL)
                process.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:6]))
