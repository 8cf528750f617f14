"""A federation of real processes over real TLS comes to the bits of a simulation on one machine."""

from __future__ import annotations

import datetime
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from federated import (
    SITES,
    Federation,
    assert_same_run,
    federation,
    journal_of,
    settings_for,
    simulated,
    wait_until,
)
from safetensors.torch import load_file

import antiphon
from antiphon.federation.federation_server import FederationServer, read_announcements
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
    assert_no_key_is_written(sites, tmp_path)


def assert_no_key_is_written(sites: Federation, folder: Path) -> None:
    """Private keys are in files of their owner only, and not in logs, journals, reports or notes."""
    files = [path for place in (sites.folder, folder) for path in place.rglob("*") if path.is_file()]
    holders = [path for path in files if b"PRIVATE KEY" in path.read_bytes()]
    assert {path.name for path in holders} == {"client.key", "server.key", "cert.json"}
    for path in holders:
        assert path.stat().st_mode & 0o077 == 0, path
    pems = [path.read_bytes().replace(b"\\n", b"\n") for path in holders]
    keys = [re.findall(rb"BEGIN[A-Z ]* PRIVATE KEY-----\n(.+?)-----END", pem, re.DOTALL) for pem in pems]
    lines = {line for found in keys for key in found for line in key.split(b"\n") if len(line) == 64}
    assert len(lines) > 50
    for path in set(files) - set(holders):
        data = path.read_bytes()
        assert not any(line in data for line in lines), path


@pytest.mark.slow
def test_updates_that_are_added_as_they_arrive_differ_in_their_last_bits_also_after_a_kill(
    sites: Federation, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    words = sites.run_words("fedavg", away, "--as-they-arrive")
    server = sites.command(words, tmp_path / "server.log")
    wait_until("two rounds", lambda: len(journal_of(away, "fedavg")) > 2, 90)
    server.send_signal(signal.SIGKILL)
    server.wait()
    again = sites.command([*words, "--resume"], tmp_path / "server.log")
    assert again.wait(120) == 0, (tmp_path / "server.log").read_text()
    here = simulated(sites, "fedavg", tmp_path / "here")
    ours, theirs = (load_file(out / "fedavg" / "model" / "model.safetensors") for out in (away, here))
    for name, tensor in ours.items():
        assert float((tensor - theirs[name]).abs().max()) <= 1e-6, name


def test_self_training_under_secure_aggregation_has_the_bits_of_its_simulation(
    sites: Federation, tmp_path: Path
) -> None:
    """Masks differ each time; the sums of integers do not.

    The teacher and its language model are files on the server. Every site gets them once, and keeps them.
    """
    secure = "runs.fedavg.secure_aggregation={max_share: 0.9}"
    inner, teacher = "{fed_avg: {local: {batch_seconds: 1.0}}}", "{other_model: {run: seed}}"
    taught = f"{{self_trained: {{inner: {inner}, teacher: {teacher}, labels: {{lm: {{weight: 0.2}}}}}}}}"
    changes = (f"runs.fedavg.algorithm={taught}", "runs.fedavg.labelled=0.5", secure)
    policy = tmp_path / "policy.yaml"
    policy.write_text("only_secure: true\nmax_share: 0.9\n")
    for site in SITES:
        sites.kill(site)
        sites.start(site, "--policy", str(policy))
    away = tmp_path / "away"
    options = [word for change in changes for word in ("--set", change)]
    server = sites.command(sites.run_words("fedavg", away, *options), tmp_path / "server.log")
    assert server.wait(120) == 0, (tmp_path / "server.log").read_text()
    here = simulated(sites, "fedavg", tmp_path / "here", *changes)
    assert_same_run(away, here, "fedavg", but=["bytes_up"])  # masked reports have the seconds of labelling
    assert all(entry["metrics"]["num_labelled"] > 0 for entry in journal_of(away, "fedavg")[1:])
    assert "no single update" in (away / "RESULTS.md").read_text()
    for site in SITES:
        sent = list((sites.kit(site) / "work" / "sent").glob("*/*"))
        assert [path.name for path in sent].count("model.json") == 1
        assert [path.name for path in sent].count("ngram.json") == 1
        assert {path.suffix for path in sent} == {".json", ".safetensors"}
        sites.kill(site)
        sites.start(site)


def test_a_pruned_model_has_the_bits_of_a_simulation_after_ctrl_c(sites: Federation, tmp_path: Path) -> None:
    """`antiphon prune --federation`: the clients at the sites prune the model of a finished run."""
    antiphon.run(
        "fedavg", sites.folder / "all", tmp_path / "first", settings=settings_for("fedavg"), device="cpu"
    )
    here, away, model = tmp_path / "here", tmp_path / "away", tmp_path / "first" / "fedavg"
    antiphon.prune(model, here, rounds=4, data=sites.folder / "all", device="cpu")
    words = [
        "prune",
        str(model),
        "--federation",
        str(sites.kit("server")),
        "--rounds",
        "4",
        "--device",
        "cpu",
    ]
    words += ["--data", str(sites.folder / "server"), "--out", str(away)]
    server = sites.command(words, tmp_path / "server.log")
    wait_until("two rounds", lambda: len(journal_of(away, "pruned")) > 2, 90)
    server.send_signal(signal.SIGINT)
    assert server.wait(60) == 130, (tmp_path / "server.log").read_text()
    assert len(journal_of(away, "pruned")) < 5  # it did not finish before
    again = sites.command([*words, "--resume"], tmp_path / "server.log")
    assert again.wait(120) == 0, (tmp_path / "server.log").read_text()
    assert_same_run(away, here, "pruned")
    assert not any(entry.get("failures") for entry in journal_of(away, "pruned"))


def test_a_site_refuses_a_private_run_above_its_limit_and_the_others_go_on(
    sites: Federation, tmp_path: Path
) -> None:
    away, policies = tmp_path / "away", {}
    for site, epsilon in zip(SITES, (4.0, 8.0, 8.0), strict=True):
        policies[site] = tmp_path / f"{site}.yaml"
        policies[site].write_text(f"epsilon: {epsilon}\ndelta: 0.001\n")
        sites.kill(site)
        sites.start(site, "--policy", str(policies[site]))
    inner, turns = "{fed_avg: {weighting: uniform}}", "{round_robin: {separation: 2}}"
    private = f"{{private: {{inner: {inner}, delta: 0.001, cohorts: {turns}, simulated: true}}}}"
    changes = (f"algorithm={private}", "rounds.min_clients=0", "rounds.cohort=3")
    options = [word for change in changes for word in ("--set", f"runs.fedavg.{change}")]
    server = sites.command(sites.run_words("fedavg", away, *options), tmp_path / "server.log")
    assert server.wait(120) == 0, (tmp_path / "server.log").read_text()
    reasons = {c: why for entry in journal_of(away, "fedavg") for c, why in entry.get("failures", {}).items()}
    assert set(reasons) == {"speaker/s00", "speaker/s03"}  # the clients of berlin
    wanted = "refuses by its policy: epsilon of a client would be 8 at delta 0.001"
    assert all(wanted in why for why in reasons.values())
    answered = {client for entry in journal_of(away, "fedavg") for client in entry.get("clients", {})}
    assert answered == {f"speaker/s0{number}" for number in (1, 2, 4, 5)}
    for site in SITES:
        sites.kill(site)
        sites.start(site)


def test_sessions_at_sites_adapt_a_model_as_in_a_simulation(sites: Federation, tmp_path: Path) -> None:
    """Each site makes speech of the text of its session, which never leaves; the server rehearses."""
    for package in ("espeakng_loader", "soxr"):
        pytest.importorskip(package)
    everything, seed = sites.folder / "all", tmp_path / "first" / "seed"
    settings = settings_for("fedavg")
    antiphon.run("fedavg", everything, tmp_path / "first", settings=settings, only="seed", device="cpu")
    speak = ["engines=espeak", "num_voices=3", "takes=1", "rehearse_hours=0.002", "valid_hours=0.001"]
    small = ["runs.adapted.algorithm.local.steps=2", "runs.adapted.algorithm.inner.local.batch_seconds=4"]
    for site, text in zip(SITES, ("A bad cab.", "Decade by decade!", "Add a bead"), strict=True):
        (tmp_path / f"{site}.txt").write_text(text)
        out = tmp_path / site
        antiphon.adapt(seed, tmp_path / f"{site}.txt", None, out, speaking=speak, speech_only=True)
        sites.kill(site)
        sites.start(site, "--data", str(out / "corpus"), "--clients", "session")
    texts, here = [tmp_path / f"{site}.txt" for site in SITES], tmp_path / "here"
    options = {"rounds": 2, "speaking": speak, "settings": small, "device": "cpu"}
    antiphon.adapt(seed, texts, everything, here, **options)  # type: ignore[arg-type]

    away = tmp_path / "away"
    words = ["adapt", str(seed), "--federation", str(sites.kit("server")), "--rehearse", str(everything)]
    words += ["--out", str(away), "--rounds", "2", "--device", "cpu"]
    words += [word for one in speak for word in ("--speak", one)]
    words += [word for one in small for word in ("--set", one)]
    server = sites.command(words, tmp_path / "server.log")
    assert server.wait(120) == 0, (tmp_path / "server.log").read_text()
    rounds = zip(journal_of(away / "runs", "adapted"), journal_of(here / "runs", "adapted"), strict=True)
    for one, other in list(rounds)[1:]:
        assert one["clients"].keys() == {f"session/{site}" for site in SITES}
        for key in ("cohort", "clients", "metrics", "loss"):  # validation here has sentences of the sessions
            assert one[key] == other[key]
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
        assert server.greet(60.0, 3, read_announcements, "utterances").keys() == set(SITES)
        joined = {"running": True, "sites": dict.fromkeys(SITES, True)}
        status = lambda: antiphon.federation_status(sites.kit("server")).items()  # noqa: E731
        wait_until("the status of all sites", lambda: status() >= joined.items(), 90)
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


def test_nobody_can_submit_a_job_to_nvflare(sites: Federation, tmp_path: Path) -> None:
    submit = """
import os, sys
from nvflare.fuel.flare_api.flare_api import new_secure_session
try:
    new_secure_session("admin@antiphon.local", sys.argv[1], timeout=20.0).submit_job(sys.argv[2])
except Exception as error:
    print(error, flush=True)
os._exit(0)  # threads of the session would keep the process
"""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "meta.json").write_text('{"name": "job", "deploy_map": {}}')
    with FederationServer.open(open_kit(sites.kit("server")), lambda text: None) as server:
        server.greet(60.0, 3, read_announcements, "utterances")
        words = [sys.executable, "-c", submit, str(sites.kit("server") / "admin"), str(tmp_path / "job")]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "is not authorized for 'submit_job'" in done.stdout


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
