"""How a process finds the others of its run: started by torchrun, mpiexec or srun, or by `--workers`."""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from antiphon.pools.links import inherited
from antiphon.pools.torch_group import TorchGroup

ARRIVAL = timedelta(minutes=10)  # the time for all processes to start
# The first process may compute features for hours while the others wait. A process that dies is noticed by
# its broken connections, not by this timeout.
PATIENCE = timedelta(days=7)
LOOPBACK = "127.0.0.1"


# Launchers by the environment variables that hold a process's rank, the number of processes, and its local
# rank.
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
# SLURM_NTASKS is also set in a batch script, which is a single process; only srun sets SLURM_STEP_NUM_TASKS.
SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
# mpiexec starts its helpers with srun, so Slurm's variables may be set too: Slurm comes last.
LAUNCHERS = (TORCHRUN, OPEN_MPI, MPICH, SLURM)


@dataclass(frozen=True)
class Rank:
    """The number of this process among all, and on its machine."""

    launcher: tuple[str, str, str]
    rank: int
    size: int
    local_rank: int


def find_rank(environment: Mapping[str, str]) -> Rank | None:
    """Return the rank of this process; None if it was started alone.

    >>> find_rank({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}).rank
    2
    """
    for launcher in LAUNCHERS:
        if all(name in environment for name in launcher):
            rank, size, local_rank = (int(environment[name]) for name in launcher)
            return Rank(launcher, rank, size, local_rank) if size > 1 else None
    return None


def choose_gpu(process: Rank, device: str) -> str:
    """Return the device by name; every process of a machine gets its own GPU if there are enough."""
    if device in ("auto", "cuda") and torch.cuda.is_available():
        return f"cuda:{process.local_rank % torch.cuda.device_count()}"
    return device


@contextmanager
def join(process: Rank, device: str, ordered: bool = False, dispatch: bool = False) -> Iterator[TorchGroup]:
    """Connect to the other processes; leave together with them, or with their errors.

    If that is impossible (some were killed, or Ctrl-C came twice), `is_left_behind` is true afterwards.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # more threads than cores would slow all processes down
    own_device = torch.device(device)
    if own_device.type == "cuda":
        torch.cuda.set_device(own_device)
    try:
        store = fresh_store(open_store(process, os.environ), process.rank, process.size)
        own_gpus = have_own_gpus(store, process, own_device)
    except dist.DistError as error:
        raise ValueError(
            f"process {process.rank} of {process.size} did not meet the others within "
            f"{ARRIVAL.seconds // 60} minutes: were all of them started? ({error})"
        ) from error
    dist.init_process_group("gloo", store=store, rank=process.rank, world_size=process.size, timeout=PATIENCE)
    gpus = dist.new_group(backend="nccl", timeout=ARRIVAL) if own_gpus else None
    links = inherited(os.environ, process.rank)
    group = TorchGroup(own_device, ordered, gpus, store if dispatch else None, links)
    try:
        with group:
            yield group
    finally:
        if not group.is_broken:
            dist.destroy_process_group()


def is_left_behind() -> bool:
    """Return whether this process still waits for others. Then only `os._exit` ends it without hanging."""
    return dist.is_initialized()


# --- The store where they meet --------------------------------------------------------------------


def open_store(process: Rank, environment: Mapping[str, str]) -> dist.Store:
    """Return a TCPStore at the first process, or at torchrun's agent."""
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    elif process.launcher is SLURM:
        address = first_host(environment["SLURM_STEP_NODELIST"])
        port = 20000 + (int(environment["SLURM_JOB_ID"]) * 7 + int(environment["SLURM_STEP_ID"])) % 12000
    elif process.launcher is TORCHRUN:
        raise ValueError("RANK and WORLD_SIZE are set, but MASTER_ADDR or MASTER_PORT is not")
    else:
        return _store_by_mpi(process)
    is_host = process.rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return _tcp_store(address, port, is_host)


def loopback_store() -> dist.TCPStore:
    """Open a store that only processes of this machine can reach."""
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(
        LOOPBACK, port, is_master=True, timeout=ARRIVAL, wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip


def _tcp_store(address: str, port: int, is_host: bool) -> dist.TCPStore:
    return dist.TCPStore(address, port, is_master=is_host, timeout=ARRIVAL, wait_for_workers=False)


def _store_by_mpi(process: Rank) -> dist.Store:
    """Return a store that the first process opens at a free port; MPI sends the address to the others."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ValueError(
            "started by mpiexec: pip install 'antiphon[mpi]', or set MASTER_ADDR (the machine of the first "
            "process) and MASTER_PORT (a free port there)"
        ) from error
    world = MPI.COMM_WORLD
    is_one_machine = world.Split_type(MPI.COMM_TYPE_SHARED).size == process.size
    message = bytearray(256)
    store = None
    if process.rank == 0:
        address = LOOPBACK if is_one_machine else socket.getfqdn()
        store = loopback_store() if is_one_machine else _tcp_store(address, 0, is_host=True)
        text = f"{address} {store.port} ".encode()
        message[: len(text)] = text
    world.Bcast(message, root=0)
    address, port, *_ = message.decode().split()
    return store or _tcp_store(address, int(port), is_host=False)


def first_host(node_list: str) -> str:
    """Return the first machine of a list as Slurm writes it.

    >>> first_host("gpu[003-005,9],login1"), first_host("node7")
    ('gpu003', 'node7')
    """
    first = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\]([^,]*))?", node_list)
    if first is None:
        raise ValueError(f"cannot read SLURM_STEP_NODELIST {node_list!r}: set MASTER_ADDR and MASTER_PORT")
    return "".join(part or "" for part in first.groups())


def fresh_store(store: dist.Store, rank: int, size: int) -> dist.Store:
    """Return an empty part of the store that only the processes of this start know.

    torchrun's store outlives the processes that it starts. After a restart it has keys of killed processes,
    and gloo would connect to them. Its number of restarts does not help, since it differs between machines.
    So every process writes a new random name, and the first process answers to that name.
    """
    if rank > 0:
        name = secrets.token_hex(8)
        store.set(f"hello/{rank}", name)
        start = store.get(f"answer/{name}").decode()
        store.set(f"joined/{start}/{rank}", "")
        return dist.PrefixStore(start, store)
    start = secrets.token_hex(8)
    waiting, deadline = set(range(1, size)), time.monotonic() + ARRIVAL.total_seconds()
    while waiting:
        if time.monotonic() > deadline:
            raise dist.DistStoreError(f"no message from {sorted(waiting)[:5]}")
        for other in sorted(waiting):
            if store.check([f"joined/{start}/{other}"]):
                waiting.remove(other)
            elif store.check([f"hello/{other}"]):
                store.set(f"answer/{store.get(f'hello/{other}').decode()}", start)
        time.sleep(0.005)
    return dist.PrefixStore(start, store)


def have_own_gpus(store: dist.Store, process: Rank, device: torch.device) -> bool:
    """Return whether every process has its own GPU, which NCCL needs."""
    store.set(f"device/{process.rank}", f"{socket.gethostname()} {device}")
    devices = [store.get(f"device/{rank}").decode() for rank in range(process.size)]
    return all(" cuda" in name for name in devices) and len(set(devices)) == process.size
