"""A federation over a bad network, with processes that die. As root, because it makes network namespaces:

    ANTIPHON_CHAOS=1 python -m pytest tests/integration/test_federation_chaos.py

The server and the sites are in two namespaces. A cable joins them, or a slow link: each way it has a delay of
50 ms, 1 % loss and 10 Mbit/s. With `-s`, the tests print what the network and the processes went through.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from federated import SITES, Federation, journal_of, settings_for, wait_until, write_corpora
from safetensors.torch import load_file
from slow_link import Shape, ip, missing, namespaces, slow_link

import antiphon
from antiphon.federation.kits import create_kits

pytestmark = pytest.mark.skipif(
    not os.environ.get("ANTIPHON_CHAOS") or bool(missing()),
    reason=missing() or "it takes 10 minutes: set ANTIPHON_CHAOS=1",
)
SERVER, CLIENTS = "antiphon-server", "antiphon-sites"
ENDS = {SERVER: "10.77.0.1/24", CLIENTS: "10.77.0.2/24"}
ROUNDS = 8


@dataclass
class Apart(Federation):
    """A federation whose server and sites are in different network namespaces."""

    def command(self, words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        namespace = SERVER if words[0] == "run" else CLIENTS
        with open(log, "ab") as output:
            return subprocess.Popen(
                ["ip", "netns", "exec", namespace, sys.executable, "-m", "antiphon", *words],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def cut(self, seconds: float) -> None:
        ip("-n", SERVER, "link", "set", "cable-a", "down")
        time.sleep(seconds)
        ip("-n", SERVER, "link", "set", "cable-a", "up")


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    write_corpora(tmp_path)
    create_kits("speech-server:8002", SITES, tmp_path / "kits")
    made = Apart(tmp_path, 8002)
    with namespaces(*ENDS, hosts="10.77.0.1 speech-server\n"):
        try:
            yield made
        finally:
            for site in list(made.running):
                made.kill(site)


def lay_cable() -> None:
    ip("link", "add", "cable-a", "type", "veth", "peer", "name", "cable-b")
    for end, (space, address) in zip(("cable-a", "cable-b"), ENDS.items(), strict=True):
        ip("link", "set", end, "netns", space)
        ip("-n", space, "addr", "add", address, "dev", end)
        ip("-n", space, "link", "set", end, "up")


def assert_as_simulated(apart: Apart, away: Path, rounds: int) -> None:
    """No client was lost, and the parameters have the bits of an undisturbed run."""
    here = away.with_name("here")
    settings = settings_for("scaffold", rounds)
    antiphon.run("scaffold", data=apart.folder / "all", out=here, settings=settings, device="cpu")
    entries = journal_of(away, "scaffold")
    assert len(entries) == rounds + 1
    assert not any(entry.get("failures") for entry in entries)
    ours, theirs = (load_file(out / "scaffold" / "model" / "model.safetensors") for out in (away, here))
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_a_run_survives_kills_of_sites_two_kills_of_the_server_and_a_cut_of_the_link(apart: Apart) -> None:
    generator, away, log = random.Random(0), apart.folder / "away", apart.folder / "server.log"
    lay_cable()
    kills = []
    for site in SITES:
        apart.start(site)
    over = threading.Event()

    def kill_sites() -> None:
        while not over.wait(generator.uniform(8.0, 15.0)):
            site = generator.choice(SITES)
            apart.kill(site)
            kills.append(site)
            time.sleep(1.0)
            apart.start(site)

    killer = threading.Thread(target=kill_sites)
    words = apart.run_words("scaffold", away, rounds=ROUNDS)
    server = apart.command(words, log)
    try:
        wait_until("a first round", lambda: len(journal_of(away, "scaffold")) > 1, 120)
        killer.start()
        for done in (2, 4):
            wait_until("more rounds", lambda done=done: len(journal_of(away, "scaffold")) > done, 240)
            server.send_signal(signal.SIGKILL)
            server.wait()
            server = apart.command([*words, "--resume"], log)
        wait_until("more rounds", lambda: len(journal_of(away, "scaffold")) > 5, 240)
        apart.cut(30.0)
        assert server.wait(400) == 0, log.read_text()[-3000:]
    finally:
        over.set()
        if killer.is_alive():
            killer.join()
        server.kill()
    assert_as_simulated(apart, away, ROUNDS)
    print(f"\n{len(kills)} kills of sites, 2 of the server, a cut of 30 s: {ROUNDS} rounds, the same bits")


def test_a_run_ends_right_over_a_slow_link_that_loses_packets(apart: Apart) -> None:
    away, log = apart.folder / "away", apart.folder / "server.log"
    with slow_link(ENDS, Shape(delay=0.05, loss=0.01, rate=10e6)) as ways:
        for site in SITES:
            apart.start(site)
        began = time.monotonic()
        server = apart.command(apart.run_words("scaffold", away, rounds=4), log)
        try:
            assert server.wait(400) == 0, log.read_text()[-3000:]
        finally:
            server.kill()
        seconds = time.monotonic() - began
    assert_as_simulated(apart, away, 4)
    carried, dropped = (sum(getattr(way, count) for way in ways) for count in ("carried", "dropped"))
    print(f"\n4 rounds in {seconds:.0f} s, {dropped} of {carried + dropped} packets lost: the same bits")
