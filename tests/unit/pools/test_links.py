"""Links between processes of one machine, and what a process notices when another one ends."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch

from antiphon.pools import spawning
from antiphon.pools.links import VARIABLE, Links, ends_of, inherited, make_pairs

Linked = list[Links]


@pytest.fixture
def links() -> Iterator[Linked]:
    pairs = make_pairs(3)
    yield [Links(rank, ends_of(rank, pairs)) for rank in range(3)]
    for end in (end for pair in pairs for end in pair):
        end.close()


@pytest.fixture
def two() -> Iterator[Linked]:
    pairs = make_pairs(2)
    yield [Links(rank, ends_of(rank, pairs)) for rank in range(2)]
    for end in pairs[0]:
        end.close()


@pytest.mark.parametrize("length", [0, 1, 10_000_000])
def test_every_process_gets_the_messages_of_all(links: Linked, length: int) -> None:
    messages = [b"a" * length, b"", b"c" * (length // 2)]
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(Links.exchange, links, messages)) == [messages] * 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("size", [0, 3, 5_000_000])
def test_two_processes_swap_tensors_larger_than_any_buffer(
    two: Linked, size: int, dtype: torch.dtype
) -> None:
    own = [torch.full((size,), rank, dtype=dtype) for rank in range(2)]
    others = [torch.empty(size, dtype=dtype) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(Links.swap, two, own, others))
    assert torch.equal(others[0], own[1])
    assert torch.equal(others[1], own[0])


def test_a_link_that_closes_is_noticed_at_once(links: Linked) -> None:
    links[2].ends[0].close()
    links[1].ends[0].sendall(bytes(8))
    with pytest.raises(ConnectionError):
        links[0].exchange(b"")


def test_a_message_that_breaks_off_is_an_error(two: Linked) -> None:
    two[1].ends[0].sendall((100).to_bytes(8, "little") + b"only this")
    two[1].ends[0].close()
    with pytest.raises(ConnectionError, match="closed its end"):
        two[0].exchange(b"")


def test_a_process_waits_no_longer_than_its_patience(two: Linked) -> None:
    with pytest.raises(TimeoutError):
        two[1].exchange(b"", timedelta(milliseconds=10))


def test_a_process_that_was_started_alone_has_no_links() -> None:
    assert inherited({}, 0) is None
    assert inherited({VARIABLE: ""}, 0) is None


TELL = """
import os, socket, sys
from antiphon.pools.links import inherited
rank = int(os.environ["RANK"])
links = inherited(os.environ, rank)
inheritable = [os.get_inheritable(end.fileno()) for end in links.ends]
line = f"{links.exchange(b'%d of %d' % (rank, len(links.ends)))} {inheritable}\\n"
os.write(1, line.encode())  # at once: several processes print
"""


def test_started_processes_have_links_and_nobody_else_holds_them(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else set()
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", TELL])
    assert spawning.run_processes(3) == 0
    told = capfd.readouterr().out.splitlines()
    assert sorted(told) == sorted(
        f"[b'0 of 2', b'1 of 1', b'2 of 1'] {inheritable}" for inheritable in ([False] * 2, [False], [False])
    )
    if before:
        open_now = {name for name in os.listdir("/proc/self/fd") if _is_socket_pair(name)}
        assert not open_now - before


def _is_socket_pair(descriptor: str) -> bool:
    try:
        with socket.socket(fileno=os.dup(int(descriptor))) as end:
            return end.family == socket.AF_UNIX
    except OSError:
        return False


KILLED = """
import os, signal, time
from antiphon.pools.links import inherited
rank = int(os.environ["RANK"])
links = inherited(os.environ, rank)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    links.exchange(b"")
except ConnectionError:
    print("noticed", flush=True)
"""


def test_a_kill_closes_the_links(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", KILLED])
    spawning.run_processes(3)
    assert capfd.readouterr().out.splitlines() == ["noticed", "noticed"]
