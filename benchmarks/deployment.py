"""Seconds of a round over TLS on this machine: antiphon over NVFLARE and Flower, and NVFLARE's own FedAvg.

    python benchmarks/deployment.py [--rounds 6] [--millions 3 25]

Three sites get a model and send it back; nobody trains, so the figures are those of the way. Each system has
its own certificates and processes. Flower is measured where `antiphon[flower]` is installed. The first round,
in which connections are made, is left out.
"""

from __future__ import annotations

import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from common import argument_parser, write_result

from antiphon.core import Report, Task, Update
from antiphon.federation.engine_process import EngineProcess, LocalSocket, ask_engine
from antiphon.federation.federation_server import FederationServer
from antiphon.federation.federation_site import serve
from antiphon.federation.kits import Kit, create_kits, open_kit
from antiphon.pools.remote_answers import answer_task
from antiphon.pools.remote_exchange import Patience
from antiphon.pools.remote_messages import Message, MissingBody, head_of, pack, unpack
from antiphon.pools.remote_pool import RemotePool, RemoteRun, RemoteStates

SITES = ("berlin", "oslo", "quito")
TENSORS = 30
SCRIPT = """
import json, sys, time
import numpy as np
import nvflare.client as flare
from nvflare.app_common.abstract.fl_model import FLModel
flare.init()
size, tensors, log = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
first = {f"w{i}": np.zeros(size // tensors, dtype=np.float32) for i in range(tensors)}
while flare.is_running():
    model = flare.receive()
    if model is None:
        break
    with open(log, "a") as file:
        file.write(json.dumps(time.time()) + "\\n")
    flare.send(FLModel(params=model.params or first))
"""


class Echo:
    """Sends back what it gets."""

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            yield Update(task.tensors, reports=(Report(client, {"loss": 1.0}),))


class EchoSite:
    """A site without speech."""

    def notify(self, text: str) -> None: ...

    def answer(self, message: Message) -> Message:
        if head_of(message)["verb"] == "hello":
            return pack({"verb": "here", "clients": {"speaker/x": [1, 1.0]}})
        try:
            return answer_task(Echo(), *unpack(message))
        except MissingBody as error:
            return pack({"verb": "need", "digest": error.digest})


class NoStates:
    expected: Any = None

    def sync(self) -> None: ...
    def wrote(self, client: str, moment: Any) -> None: ...
    def prune(self, rounds: Any) -> None: ...
    def rollback(self, round: int) -> None: ...


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def antiphon_rounds(root: Path, size: int, rounds: int, carrier: str = "nvflare") -> list[float]:
    create_kits(f"localhost:{free_port()}", SITES, root / "kits", carrier=carrier)
    children = [
        subprocess.Popen([sys.executable, __file__, "--site", str(root / "kits" / site)]) for site in SITES
    ]
    tensors = {f"w{i}": torch.zeros(size // TENSORS) for i in range(TENSORS)}
    clients = {f"speaker/{site}": site for site in SITES}
    run = RemoteRun("0" * 32, pack({"verb": "setup"}), RemoteStates(NoStates()))
    seconds = []
    try:
        with FederationServer.open(open_kit(root / "kits" / "server"), print) as server:
            server.greet(120.0, len(SITES))
            pool = RemotePool(server.link, clients, Echo(), run, Patience())
            for number in range(rounds):
                began = time.perf_counter()
                task = Task("benchmark.echo", tensors, {"round": number, "call": 0})
                update = pool.reduce(task, list(clients), lambda report: 0.0)
                seconds.append(time.perf_counter() - began)
                assert len(update.reports) == len(SITES), update.failures
    finally:
        for child in children:
            child.kill()
            child.wait()
    return seconds[1:]


def nvflare_rounds(root: Path, size: int, rounds: int) -> list[float]:
    """NVFLARE's FedAvg in kits of its own, whose settings are NVFLARE's defaults."""
    create_kits(f"localhost:{free_port()}", SITES, root / "kits")
    for name in ("server", *SITES):
        local = root / "kits" / name / "engine" / "local"
        for settings in ("resources.json", "authorization.json", "log_config.json"):
            text = (local / f"{settings}.default").read_text()
            (local / settings).write_text(text)
    job, log = root / "job", root / "times.jsonl"
    workflow = {
        "id": "controller",
        "path": "nvflare.app_common.workflows.fedavg.FedAvg",
        "args": {"num_clients": len(SITES), "num_rounds": rounds + 1},
    }
    executor = {
        "path": "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor",
        "args": {
            "execution_mode": "in_process",
            "task_script_path": "echo.py",
            "task_script_args": f"{size} {TENSORS} {log}",
        },
    }
    files = {
        "meta.json": {
            "name": "fedavg",
            "resource_spec": {},
            "min_clients": len(SITES),
            "deploy_map": {"app_server": ["server"], "app_site": list(SITES)},
        },
        "app_server/config/config_fed_server.json": {"format_version": 2, "workflows": [workflow]},
        "app_site/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["train"], "executor": executor}],
        },
    }
    for name, contents in files.items():
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text(json.dumps(contents))
    (job / "app_site" / "custom").mkdir()
    (job / "app_site" / "custom" / "echo.py").write_text(SCRIPT)
    kits = {name: _unsigned(root / "kits" / name) for name in ("server", *SITES)}
    local_socket = LocalSocket()
    processes = [EngineProcess(kit, local_socket) for kit in kits.values()]
    try:
        _until(lambda: len(ask_engine(kits["server"], "sites").get("sites", [])) == len(SITES), 120)
        answer = ask_engine(kits["server"], "submit", str(job))
        assert "job" in answer, answer
        _until(lambda: len(_times(log)) >= len(SITES) * (rounds + 1), 600)
    finally:
        for process in processes:
            process.end()
        local_socket.close()
    times = _times(log)
    begins = [min(times[i : i + len(SITES)]) for i in range(0, len(times), len(SITES))]
    return [after - before for before, after in pairwise(begins[1:])]


def _unsigned(folder: Path) -> Kit:
    """Return a kit whose settings were replaced, so that its signature does not fit any more."""
    about = json.loads((folder / "kit.json").read_text())
    now = datetime.now(UTC)
    return Kit(folder, about["name"], about["host"], about["port"], tuple(about["sites"]), "", now)


def _times(log: Path) -> list[float]:
    return sorted(json.loads(line) for line in log.read_text().splitlines()) if log.exists() else []


def _until(test: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not test():
        if time.monotonic() > end:
            raise TimeoutError("NVFLARE did not finish")
        time.sleep(0.2)


def main() -> None:
    parser = argument_parser(__doc__, "deployment")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--millions", type=float, nargs="*", default=[3, 25])
    parser.add_argument("--site", type=Path, help="serve one site; used by this program itself")
    options = parser.parse_args()
    if options.site:
        serve(open_kit(options.site), EchoSite(), threading.Event())  # type: ignore[arg-type]
        return
    results = []
    systems = {"antiphon": antiphon_rounds, "nvflare fedavg": nvflare_rounds}
    if find_spec("flwr"):
        systems["antiphon over flower"] = partial(antiphon_rounds, carrier="flower")
    for millions in [1] if options.quick else options.millions:
        for system, measure in systems.items():
            root = Path(tempfile.mkdtemp(prefix="deployment-"))
            try:
                seconds = measure(root, int(millions * 10**6), options.rounds)
            finally:
                shutil.rmtree(root, ignore_errors=True)
            row = {
                "system": system,
                "millions": millions,
                "sites": len(SITES),
                "seconds": [round(each, 3) for each in seconds],
                "median": round(statistics.median(seconds), 3),
            }
            if system == "antiphon":
                row["overhead"] = round(overhead(int(millions * 10**6)), 6)
            results.append(row)
            print(json.dumps(row), flush=True)
    write_result(options, {"rows": results})


def overhead(size: int) -> float:
    """Bytes of a message over those of its tensors, as a share."""
    message = pack({"verb": "answer"}, {f"w{i}": torch.zeros(size // TENSORS) for i in range(TENSORS)})
    return len(message) / (4 * (size // TENSORS) * TENSORS) - 1


if __name__ == "__main__":
    main()
