"""Seconds and bytes of a round over TLS: antiphon over NVFLARE and Flower, and their own FedAvg.

    python benchmarks/deployment.py [--rounds 6] [--repeats 3] [--millions 3 25] [--systems NAME...]

Three sites get a model and send it back; nobody trains, so the figures are those of the way. Each system has
its own certificates and processes. Systems take turns, `--repeats` times, because others may use the machine.
Flower is measured where `antiphon[flower]` is installed. The first round of each turn, in which connections
are made, is left out.

Flower's own FedAvg (`frameworks/deployed_flower.py`) is timed from the end of a round to the end of the next.

Bytes are those that the kernel counts for the connections between server and sites (`ss`): with TLS and gRPC,
without the headers of TCP and IP. It forgets connections that have ended, as those over Flower do: there, a
proxy counts the bytes, in rounds without a clock. `over_payload` compares bytes with the float32 numbers of
the model, once to each site and once back.
"""

from __future__ import annotations

import json
import math
import random
import re
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import torch
from common import argument_parser, write_result
from frameworks.counting_proxy import CountingProxy

from antiphon.core import Report, Task, Update
from antiphon.federation.engine_process import EngineProcess, LocalSocket, ask_engine
from antiphon.federation.federation_server import FederationServer, read_announcements
from antiphon.federation.kits import Kit, create_kits, open_kit
from antiphon.federation.site_service import serve
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
size, tensors, log, quiet = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
first = {f"w{i}": np.zeros(size // tensors, dtype=np.float32) for i in range(tensors)}
while flare.is_running():
    model = flare.receive()
    if model is None:
        break
    with open(log, "a") as file:
        file.write(json.dumps(time.time()) + "\\n")
    if model.current_round in (0, model.total_rounds - 1):
        time.sleep(quiet)  # while the benchmark counts bytes
    flare.send(FLModel(params=model.params or first))
"""
SUBMIT = """
import os, sys
from nvflare.fuel.flare_api.flare_api import new_secure_session
new_secure_session("admin@antiphon.local", sys.argv[1], timeout=5.0).submit_job(sys.argv[2])
os._exit(0)
"""
FLOWER = Path(__file__).parent / "frameworks" / "deployed_flower.py"
COUNTED = 3  # rounds of antiphon over Flower in which bytes are counted, the first of them left out
QUIET = 8.0  # seconds in which nothing is sent, before and after the rounds of NVFLARE that count


@dataclass(frozen=True)
class Measured:
    seconds: list[float]  # of each round
    bytes_a_round: float | None  # None: unknown, because connections ended
    cpu: dict[str, float] | None = None  # seconds of a round that processes have worked, by what they are


def bytes_through(port: int) -> int:
    """Return the bytes that open connections to a port of this machine have received and sent."""
    command = ["ss", "-tinH", "state", "established", "sport", "=", f":{port}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sum(map(int, re.findall(r"bytes_(?:sent|received):(\d+)", text)))


def cpu_until_now() -> dict[str, float]:
    """Return the seconds that this process and those below it have worked, by what they are."""
    own = psutil.Process()
    totals = dict.fromkeys(("antiphon, server", "antiphon, sites", "carrier, server", "carrier, sites"), 0.0)
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            words = process.cmdline()
            who = "antiphon" if process == own or "--site" in words else "carrier"
            is_server = process == own or any("/kits/server" in word for word in words)
            times = process.cpu_times()
            totals[f"{who}, {'server' if is_server else 'sites'}"] += times.user + times.system
    return totals


def cpu_a_round(before: dict[str, float], after: dict[str, float], rounds: int) -> dict[str, float]:
    return {what: (after[what] - before[what]) / rounds for what in after}


class Echo:
    """Sends back other numbers than it gets: Flower sends equal pieces once, and those of training differ."""

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            changed = {name: tensor + random.random() for name, tensor in task.tensors.items()}
            yield Update(changed, reports=(Report(client, {"loss": 1.0}),))


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


def antiphon_rounds(root: Path, size: int, rounds: int) -> Measured:
    port = free_port()
    create_kits(f"localhost:{port}", SITES, root / "kits")
    server = open_kit(root / "kits" / "server")
    return rounds_between(root, server, size, rounds, partial(bytes_through, port))


def rounds_over_flower(root: Path, size: int, rounds: int) -> Measured:
    """Rounds with a clock, and then rounds through a proxy that counts."""
    timed, counted, port = root / "timed", root / "counted", free_port()
    create_kits(f"localhost:{port}", SITES, timed / "kits", carrier="flower")
    found = rounds_between(timed, open_kit(timed / "kits" / "server"), size, rounds)
    proxy = CountingProxy(port := free_port())
    create_kits(f"localhost:{proxy.port}", SITES, counted / "kits", carrier="flower")
    about = counted / "kits" / "server" / "kit.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "port": port}))  # behind the proxy
    through = partial(proxy.bytes_until, math.inf)
    other = rounds_between(counted, _unsigned(about.parent), size, COUNTED, through)
    return replace(found, bytes_a_round=other.bytes_a_round)


def rounds_between(
    root: Path, kit: Kit, size: int, rounds: int, count: Callable[[], int] | None = None
) -> Measured:
    """Return seconds, processors and bytes of rounds between a server and the sites of its kits."""
    children = [
        subprocess.Popen([sys.executable, __file__, "--site", str(root / "kits" / site)]) for site in SITES
    ]
    model = {f"w{i}": torch.rand(size // TENSORS) for i in range(TENSORS)}
    clients = {f"speaker/{site}": site for site in SITES}
    run = RemoteRun("0" * 32, pack({"verb": "setup"}), RemoteStates(NoStates()))
    seconds, sent, worked = [], [0], [cpu_until_now()]
    try:
        with FederationServer.open(kit, print) as server:
            server.greet(120.0, len(SITES), read_announcements, "utterances")
            pool = RemotePool(server.link, clients, Echo(), run, Patience())
            for number in range(rounds):
                tensors = {name: tensor + number for name, tensor in model.items()}
                began = time.perf_counter()
                task = Task("benchmark.echo", tensors, {"round": number, "call": 0})
                update = pool.reduce(task, list(clients), lambda report: 0.0)
                seconds.append(time.perf_counter() - began)
                sent.append(count() if count else 0)
                worked.append(cpu_until_now())
                assert len(update.reports) == len(SITES), update.failures
    finally:
        for child in children:
            child.kill()
            child.wait()
    cpu = cpu_a_round(worked[1], worked[-1], rounds - 1)
    size_a_round = (sent[-1] - sent[1]) / (rounds - 1) if count else None
    return Measured(seconds[1:], size_a_round, cpu)


def nvflare_rounds(root: Path, size: int, rounds: int) -> Measured:
    """NVFLARE's FedAvg in kits of its own, whose settings are NVFLARE's defaults."""
    port = free_port()
    create_kits(f"localhost:{port}", SITES, root / "kits")
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
            "task_script_args": f"{size} {TENSORS} {log} {QUIET}",
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
    processes = [EngineProcess(kit, local_socket, settings={}) for kit in kits.values()]
    try:
        _until(lambda: len(ask_engine(kits["server"], "sites").get("sites", [])) == len(SITES), 120)
        admin = str(kits["server"].folder / "admin")
        subprocess.run([sys.executable, "-c", SUBMIT, admin, str(job)], check=True, capture_output=True)
        sent, worked = [], []
        for done in (1, rounds + 1):  # models that each site has received: the first has no numbers
            _until(lambda done=done: len(_times(log)) >= len(SITES) * done, 600)
            time.sleep(QUIET / 2)
            sent.append(bytes_through(port))
            worked.append(cpu_until_now())
    finally:
        for process in processes:
            process.end()
        local_socket.close()
    times = _times(log)
    begins = [min(times[i : i + len(SITES)]) for i in range(0, len(times), len(SITES))]
    seconds = [after - before for before, after in pairwise(begins[1:])]
    return Measured(seconds, (sent[1] - sent[0]) / rounds, cpu_a_round(*worked, rounds))


def flower_rounds(root: Path, size: int, rounds: int) -> Measured:
    """Flower's FedAvg, with a SuperLink and SuperNodes."""

    def ends_of_rounds(folder: Path, port: int, site_port: int, rounds: int) -> list[float]:
        words = [str(folder), str(port), str(site_port), str(size), str(rounds)]
        subprocess.run([sys.executable, str(FLOWER), *words], check=True, stdout=subprocess.DEVNULL)
        ends: list[float] = json.loads((folder / "rounds.json").read_text())
        return ends

    port = free_port()
    ends = ends_of_rounds(root / "timed", port, port, rounds)
    port = free_port()
    proxy = CountingProxy(port)
    first, last = ends_of_rounds(root / "counted", port, proxy.port, 2)
    seconds = [after - before for before, after in pairwise(ends)]
    return Measured(seconds, proxy.bytes_until(last) - proxy.bytes_until(first))


def _unsigned(folder: Path) -> Kit:
    """Return a kit whose settings were replaced, so that its signature does not fit any more."""
    about = json.loads((folder / "kit.json").read_text())
    now = datetime.now(UTC)
    where = (about["host"], about["port"], tuple(about["sites"]))
    return Kit(folder, about["name"], *where, "", now, about["carrier"])


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
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--millions", type=float, nargs="*", default=[3, 25])
    parser.add_argument("--systems", nargs="*", help="only these; give another --out")
    parser.add_argument("--site", type=Path, help="serve one site; used by this program itself")
    options = parser.parse_args()
    if options.site:
        serve(open_kit(options.site), EchoSite(), threading.Event())  # type: ignore[arg-type]
        return
    systems = {"antiphon": antiphon_rounds, "nvflare fedavg": nvflare_rounds}
    if find_spec("flwr"):
        systems |= {"antiphon over flower": rounds_over_flower, "flower fedavg": flower_rounds}
    if unknown := [system for system in options.systems or () if system not in systems]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(systems)}")
    if options.systems:
        systems = {system: systems[system] for system in options.systems}
    rows = []
    for millions in [1] if options.quick else options.millions:
        measured: dict[str, list[Measured]] = {system: [] for system in systems}
        failed: dict[str, int] = {}
        for _ in range(1 if options.quick else options.repeats):
            for system, measure in systems.items():
                try:
                    measured[system].append(in_own_folder(measure, int(millions * 10**6), options.rounds))
                    print(system, measured[system][-1], flush=True)
                except subprocess.CalledProcessError as error:  # a turn of Flower that has failed
                    failed[system] = failed.get(system, 0) + 1
                    print(system, "failed:", error, flush=True)
        rows += [row_of(system, millions, turns) for system, turns in measured.items() if turns]
        rows += [{"system": s, "millions": millions, "failed_turns": n} for s, n in failed.items()]
    sizes = [f"{millions:g}" for millions in options.millions]
    own = ["--rounds", str(options.rounds), "--repeats", str(options.repeats), "--millions", *sizes]
    if options.systems:
        own += ["--systems", *map(shlex.quote, options.systems)]
    write_result(options, {"rows": rows}, *own)


def in_own_folder(measure: Any, size: int, rounds: int) -> Measured:
    root = Path(tempfile.mkdtemp(prefix="deployment-"))
    try:
        found: Measured = measure(root, size, rounds)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return found


def row_of(system: str, millions: float, turns: Sequence[Measured]) -> dict[str, Any]:
    payload = 4 * (int(millions * 10**6) // TENSORS) * TENSORS * len(SITES) * 2
    sent = [turn.bytes_a_round for turn in turns if turn.bytes_a_round is not None]
    row: dict[str, Any] = {
        "system": system,
        "millions": millions,
        "sites": len(SITES),
        "seconds": [[round(each, 3) for each in turn.seconds] for turn in turns],
        "median": round(statistics.median(each for turn in turns for each in turn.seconds), 3),
    }
    if sent:
        row["bytes"] = round(statistics.median(sent))
        row["over_payload"] = round(row["bytes"] / payload - 1, 5)
    if all(turn.cpu for turn in turns):
        parts = [turn.cpu for turn in turns if turn.cpu]
        row["cpu_seconds"] = {
            what: round(statistics.median(part[what] for part in parts), 2) for what in parts[0]
        }
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
