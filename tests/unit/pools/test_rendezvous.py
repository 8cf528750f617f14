from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from antiphon.pools.rendezvous import (
    MPICH,
    OPEN_MPI,
    SLURM,
    TORCHRUN,
    Rank,
    choose_gpu,
    find_rank,
    first_host,
    fresh_store,
    loopback_store,
    open_store,
)

SRUN = {
    "SLURM_JOB_ID": "71",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
}
BY_TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
BY_OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "PMIX_RANK": "2",
}
BY_MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}


@pytest.mark.parametrize(
    ("environment", "process"),
    [
        ({}, None),
        (BY_TORCHRUN, Rank(TORCHRUN, 3, 4, 1)),
        (SRUN, Rank(SLURM, 5, 8, 1)),
        (BY_OPEN_MPI, Rank(OPEN_MPI, 2, 4, 0)),
        (BY_MPICH, Rank(MPICH, 1, 2, 1)),
        ({**SRUN, **BY_TORCHRUN}, Rank(TORCHRUN, 3, 4, 1)),  # srun starts torchrun, torchrun starts us
        ({**SRUN, **BY_OPEN_MPI}, Rank(OPEN_MPI, 2, 4, 0)),  # mpiexec starts its helpers with srun
        ({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "8"}, Rank(SLURM, 5, 8, 1)),  # srun --mpi=pmi2
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, None),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"},
            None,
        ),  # a batch script, without srun
    ],
)
def test_a_process_finds_its_place_by_who_started_it(
    environment: dict[str, str], process: Rank | None
) -> None:
    assert find_rank(environment) == process


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu3", "gpu3"),
        ("gpu3,gpu4", "gpu3"),
        ("gpu[03-12]", "gpu03"),
        ("gpu[7,9-12],login1", "gpu7"),
        ("rack1-node[2-3]-ib,x", "rack1-node2-ib"),
    ],
)
def test_the_first_machine_of_a_slurm_list_is_where_all_meet(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_ranks_without_an_address_are_refused() -> None:
    with pytest.raises(ValueError, match="MASTER_ADDR or MASTER_PORT is not"):
        open_store(Rank(TORCHRUN, 0, 2, 0), BY_TORCHRUN)


def test_without_a_gpu_the_device_stays_as_named() -> None:
    assert choose_gpu(Rank(TORCHRUN, 1, 2, 1), "cpu") == "cpu"


def test_a_store_for_one_machine_listens_on_the_loopback_interface_only() -> None:
    store = loopback_store()
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    if not tables[0].exists():
        pytest.skip("reads /proc/net/tcp, which only Linux has")
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    listening = [row[1].split(":") for row in rows if row[3] == "0A"]  # address and port, in hexadecimal
    assert [address for address, port in listening if int(port, 16) == store.port] == ["0100007F"]
    store.set("key", "value")
    other = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=60))
    assert other.get("key") == b"value"


def test_processes_meet_in_a_store_that_still_knows_the_dead() -> None:
    """As torchrun's after a restart: a name of one that was killed, and what it was told."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stores = [
        dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=60))
        for _ in range(3)
    ]
    for rank in (1, 2):
        server.set(f"hello/{rank}", f"dead-{rank}")
        server.set(f"answer/dead-{rank}", "old")
        server.set(f"joined/old/{rank}", "")
    server.set("old/value", "stale")
    server.get("old/value")  # sets are not waited for: without this one of them may come after what follows
    for attempt in range(3):
        found: dict[int, dist.Store] = {}

        def join(rank: int, found: dict[int, dist.Store] = found) -> None:
            found[rank] = fresh_store(stores[rank], rank, 3)

        threads = [threading.Thread(target=join, args=(rank,)) for rank in (2, 0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert sorted(found) == [0, 1, 2]
        assert not found[1].check(["value"])
        found[2].set("value", f"new {attempt}")
        assert found[0].get("value") == f"new {attempt}".encode()
