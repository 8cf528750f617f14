"""A federation of real processes over real TLS comes to the bits of a simulation on one machine."""

from __future__ import annotations

import datetime
import json
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from federated import SITES, Federation, assert_same_run, federation, journal_of, simulated, wait_until

from antiphon.federation.federation_server import FederationServer
from antiphon.federation.kits import create_kits, open_kit
from antiphon.pools.remote_messages import pack


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("federation")) as made:
        yield made


def test_a_run_has_the_bits_of_a_simulation_and_the_sites_keep_the_states(
    sites: Federation, tmp_path: Path
) -> None:
    """The server is killed in mid-run and resumed; SCAFFOLD's control variates stay at the sites."""
    away = tmp_path / "away"
    server = sites.command(sites.run_words("scaffold", away), tmp_path / "server.log")
    wait_until("two rounds", lambda: len(journal_of(away, "scaffold")) > 2, 90)
    server.send_signal(signal.SIGKILL)
    server.wait()
    again = sites.command(sites.run_words("scaffold", away, "--resume"), tmp_path / "server.log")
    assert again.wait(120) == 0, (tmp_path / "server.log").read_text()
    assert_same_run(away, simulated(sites, "scaffold", tmp_path / "here"), "scaffold")
    assert not list((away / "scaffold" / "clients").rglob("*.safetensors"))
    kept = {path.parent.name for site in SITES for path in sites.kit(site).rglob("states/*/*/*.safetensors")}
    assert kept == {f"speaker%2Fs0{number}" for number in range(6)}
    log = (tmp_path / "server.log").read_text()
    assert "PRIVATE KEY" not in log


def test_a_run_under_secure_aggregation_has_the_bits_of_its_simulation(
    sites: Federation, tmp_path: Path
) -> None:
    """Masks differ each time; the sums of integers do not."""
    away, secure = tmp_path / "away", "runs.fedavg.secure_aggregation={max_share: 0.9}"
    words = sites.run_words("fedavg", away, "--set", secure)
    policy = tmp_path / "policy.yaml"
    policy.write_text("only_secure: true\nmax_share: 0.9\n")
    for site in SITES:
        sites.kill(site)
        sites.start(site, "--policy", str(policy))
    server = sites.command(words, tmp_path / "server.log")
    assert server.wait(120) == 0, (tmp_path / "server.log").read_text()
    assert_same_run(away, simulated(sites, "fedavg", tmp_path / "here", secure), "fedavg")
    assert "no single update" in (away / "RESULTS.md").read_text()
    for site in SITES:
        sites.kill(site)
        sites.start(site)


def test_callers_without_a_certificate_of_the_federation_are_refused(
    sites: Federation, tmp_path: Path
) -> None:
    """With the key of a site: greeted. Without one, with one of another federation, or expired: refused.

    A site that is killed does not answer; once it is started again it does, and nothing else is restarted.
    """
    other = create_kits(f"localhost:{sites.port}", ["oslo"], tmp_path / "other")[1] / "engine" / "startup"
    own = sites.kit("oslo") / "engine" / "startup"
    expired = expired_certificate(sites, tmp_path)
    with FederationServer.open(open_kit(sites.kit("server")), lambda text: None) as server:
        assert server.greet(60.0, 3).keys() == set(SITES)
        assert is_greeted(sites.port, own / "rootCA.pem", own / "client.crt", own / "client.key")
        assert not is_greeted(sites.port, own / "rootCA.pem")
        assert not is_greeted(sites.port, own / "rootCA.pem", other / "client.crt", other / "client.key")
        assert not is_greeted(sites.port, own / "rootCA.pem", expired, own / "client.key")

        sites.kill("quito")
        ticket = server.link.push("quito", pack({"verb": "hello"}))
        assert server.link.poll(3.0) is None
        sites.start("quito")
        arrival = wait_until("quito is back", lambda: server.link.poll(1.0), 60)
        assert arrival.ticket == ticket
        assert arrival.message is not None


def expired_certificate(sites: Federation, folder: Path) -> Path:
    """A certificate of oslo by the federation's own authority, which was valid until yesterday."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.x509 import load_pem_x509_certificate
    from nvflare.lighter.utils import Identity, generate_cert, serialize_cert

    state = json.loads((sites.kit("authority") / "cert.json").read_text())
    root = serialization.load_pem_private_key(state["root_pri_key"].encode(), None)
    present = load_pem_x509_certificate((sites.kit("oslo") / "engine/startup/client.crt").read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    certificate = generate_cert(
        Identity("oslo", "antiphon"),
        Identity("antiphon"),
        root,
        present.public_key(),
        not_valid_before=now - datetime.timedelta(days=9),
        not_valid_after=now - datetime.timedelta(days=1),
    )
    path = folder / "expired.crt"
    path.write_bytes(serialize_cert(certificate))
    return path


def is_greeted(port: int, authority: Path, certificate: Path | None = None, key: Path | None = None) -> bool:
    """Whether the server speaks HTTP/2 to a caller with this certificate."""
    context = ssl.create_default_context(cafile=str(authority))
    context.set_alpn_protocols(["h2"])
    if certificate is not None and key is not None:
        context.load_cert_chain(certificate, key)
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as stream,
        ):
            return stream.recv(1) != b""
    except (ssl.SSLError, ConnectionError):
        return False
