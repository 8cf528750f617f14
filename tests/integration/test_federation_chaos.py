"""A federation over a bad network, with processes that die. As root, because it makes network namespaces:

    ANTIPHON_CHAOS=1 python -m pytest tests/integration/test_federation_chaos.py

The server and the sites are in two namespaces that a cable joins. With netem in the kernel, it has a delay of
50 ms, 1 % loss and 10 Mbit/s; without it, that test is skipped.
"""

from __future__ import annotations

import os
import random
import shutil
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

import antiphon
from antiphon.federation.kits import create_kits

pytestmark = pytest.mark.skipif(
    not os.environ.get("ANTIPHON_CHAOS") or os.geteuid() != 0 or shutil.which("ip") is None,
    reason="set ANTIPHON_CHAOS=1, and be root on Linux",
)
SERVER, CLIENTS = "antiphon-server", "antiphon-sites"
ROUNDS = 8


def ip(*words: str, check: bool = True) -> bool:
    return subprocess.run(["ip", *words], check=check, capture_output=True).returncode == 0


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

    def shape(self) -> bool:
        rules = ["root", "netem", "delay", "50ms", "loss", "1%", "rate", "10mbit"]
        ends = {SERVER: "cable-a", CLIENTS: "cable-b"}
        words = [["tc", "-n", space, "qdisc", "add", "dev", end, *rules] for space, end in ends.items()]
        return all(subprocess.run(word, capture_output=True).returncode == 0 for word in words)


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    for number, (space, end) in enumerate({SERVER: "cable-a", CLIENTS: "cable-b"}.items(), 1):
        ip("netns", "add", space)
        hosts = Path("/etc/netns") / space / "hosts"
        hosts.parent.mkdir(parents=True, exist_ok=True)
        hosts.write_text("127.0.0.1 localhost\n10.77.0.1 speech-server\n")
        if number == 1:
            ip("link", "add", "cable-a", "type", "veth", "peer", "name", "cable-b")
        ip("link", "set", end, "netns", space)
        ip("-n", space, "addr", "add", f"10.77.0.{number}/24", "dev", end)
        ip("-n", space, "link", "set", end, "up")
        ip("-n", space, "link", "set", "lo", "up")
    write_corpora(tmp_path)
    made = Apart(tmp_path, 8002)
    create_kits("speech-server:8002", SITES, tmp_path / "kits")
    try:
        yield made
    finally:
        for site in list(made.running):
            made.kill(site)
        for space in (SERVER, CLIENTS):
            ip("netns", "del", space, check=False)
            shutil.rmtree(Path("/etc/netns") / space, ignore_errors=True)


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
    for site in SITES:
        apart.start(site)
    over = threading.Event()

    def kill_sites() -> None:
        while not over.wait(generator.uniform(8.0, 15.0)):
            site = generator.choice(SITES)
            apart.kill(site)
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


def test_a_run_ends_right_over_a_slow_link_that_loses_packets(apart: Apart) -> None:
    if not apart.shape():
        pytest.skip("the kernel has no netem")
    for site in SITES:
        apart.start(site)
    away, log = apart.folder / "away", apart.folder / "server.log"
    server = apart.command(apart.run_words("scaffold", away, rounds=4), log)
    assert server.wait(400) == 0, log.read_text()[-3000:]
    assert_as_simulated(apart, away, 4)
