"""Flower carries the messages of a federation: real processes, TLS, and a key for each site.

Flower is not in the environment for development, because it holds other packages back. To run these tests:
pip install -c constraints.txt -e '.[flower]' pytest pytest-xdist hypothesis,
in an environment of its own.
"""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from federated import (
    SITES,
    Federation,
    assert_same_run,
    federation,
    free_port,
    journal_of,
    simulated,
    wait_until,
)

import antiphon
from antiphon.federation.federation_server import FederationServer, read_announcements
from antiphon.federation.kits import create_kits, open_kit
from antiphon.pools.remote_messages import pack

pytest.importorskip("flwr", reason="needs antiphon[flower], in an environment of its own")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("federation"), "flower") as made:
        yield made


def test_a_run_over_flower_has_the_bits_of_a_simulation_though_its_server_was_killed(
    sites: Federation, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    server = sites.command(sites.run_words("scaffold", away), tmp_path / "server.log")
    joined = {"running": True, "sites": dict.fromkeys(SITES, True)}
    wait_until(
        "all sites", lambda: antiphon.federation_status(sites.kit("server")).items() >= joined.items(), 90
    )
    wait_until("two rounds", lambda: len(journal_of(away, "scaffold")) > 2, 90)
    server.send_signal(signal.SIGKILL)
    server.wait()
    again = sites.command(sites.run_words("scaffold", away, "--resume"), tmp_path / "server.log")
    assert again.wait(120) == 0, (tmp_path / "server.log").read_text()
    assert_same_run(away, simulated(sites, "scaffold", tmp_path / "here"), "scaffold")
    assert not list((away / "scaffold" / "clients").rglob("*.safetensors"))


def test_flower_answers_the_sites_of_the_kit_and_nobody_else(sites: Federation, tmp_path: Path) -> None:
    """A SuperNode with the key of another federation is refused. The port offers nothing but the Fleet API.

    A site that is killed with a task gets it again once it is back, and nothing else is restarted.
    """
    other = create_kits(f"localhost:{sites.port}", ["oslo"], tmp_path / "other", carrier="flower")[1]
    other = other / "engine" / "startup" / "node.key"
    with FederationServer.open(open_kit(sites.kit("server")), lambda text: None) as server:
        assert server.greet(60.0, 3, read_announcements, "utterances").keys() == set(SITES)
        uninvited = supernode(sites, tmp_path, "--auth-supernode-private-key", str(other))
        assert "Failed to activate SuperNode" in uninvited.stdout
        assert uninvited.returncode != 0
        without_key = supernode(sites, tmp_path)
        assert "SuperNode authentication is enabled" in without_key.stdout
        assert without_key.returncode != 0
        for path in ("/v1/control/start-run", "/v1/runtime/pull-messages", "/docs", "/openapi.json", "/"):
            assert answer(sites, path) == 404
        assert answer(sites, "/v1/fleet/pull-messages") in (400, 401, 415, 422)

        sites.kill("quito")
        ticket = server.link.push("quito", pack({"verb": "hello"}))
        assert server.link.poll(3.0) is None
        sites.start("quito")
        arrival = wait_until("quito is back", lambda: server.link.poll(1.0), 60)
        assert arrival.ticket == ticket
        assert arrival.message is not None


def supernode(sites: Federation, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Start a SuperNode of Flower itself, and wait for its end."""
    root = sites.kit("oslo") / "engine" / "startup" / "rootCA.pem"
    where = ["--root-certificates", str(root), "--superlink", f"localhost:{sites.port}"]
    where += ["--max-retries", "0", "--isolation", "process", "--port", str(free_port())]
    off = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(folder)}
    return subprocess.run(
        [str(Path(sys.executable).parent / "flower-supernode"), *where, *words],
        env={**os.environ, **off},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )


def answer(sites: Federation, path: str) -> int:
    """Return the status with which the server answers a stranger's request."""
    context = ssl.create_default_context(cafile=str(sites.kit("oslo") / "engine/startup/rootCA.pem"))
    request = urllib.request.Request(f"https://localhost:{sites.port}{path}", data=b"")
    request.add_header("content-type", "application/x-protobuf")
    try:
        with urllib.request.urlopen(request, context=context, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
