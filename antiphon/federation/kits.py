"""Kits: what each participant of a federation gets. A certificate, its private key, and signed settings.

    kits/server/      for the server; also holds the key that asks which sites are connected
    kits/SITE/        for one site
    kits/authority/   the key that signs certificates and kits: keep it offline

Messages travel with NVFLARE, or with Flower. Kits for Flower have one elliptic key for each site instead of
NVFLARE's settings, and the server's kit has the public halves.

`kit.json` in a kit lists the SHA-256 of all its files, and is signed by the authority. Certificates come from
NVFLARE's provisioning. Private keys can be read by their owner only.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from antiphon.records.files import sha256_of, sync
from antiphon.records.folders import new_folder
from antiphon.records.reading import read_object

FORMAT = "antiphon-kit/2"
ADMIN = "admin@antiphon.local"
CARRIERS = ("nvflare", "flower")
ENGINE = "engine"  # the folder of a kit that the carrier reads
STARTUP = f"{ENGINE}/startup"
SITE_KEYS = "sites"  # the folder with the public keys of sites, in the server's STARTUP
WORK = "work"  # the folder in a kit that is written to while it is used; not signed
IMPL = "nvflare.lighter.impl."
RELAY = "antiphon.federation.nvflare_relay"


@dataclass(frozen=True)
class Kit:
    """A kit whose files are as the authority signed them."""

    folder: Path
    name: str  # of the site; "server" for the server
    host: str
    port: int
    sites: tuple[str, ...]  # of the federation, in the server's kit
    fingerprint: str  # of the authority
    ends: datetime  # when the certificate expires
    carrier: str = "nvflare"  # what moves the messages

    @property
    def is_server(self) -> bool:
        return self.name == "server"

    @property
    def work(self) -> Path:
        folder = self.folder / WORK
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
            sync(self.folder)
        return folder

    def workspace(self) -> Path:
        """The folder in which the carrier runs: for NVFLARE, a copy of the signed files, made anew."""
        if self.carrier != "nvflare":
            return self.folder
        target = self.work / ENGINE
        for part in ("startup", "local"):
            shutil.rmtree(target / part, ignore_errors=True)
            shutil.copytree(self.folder / ENGINE / part, target / part)
        # By default, all servers of a machine would write into one folder.
        resources = target / "local" / "resources.json"
        resources.write_text(resources.read_text().replace("/tmp/nvflare", str(self.work / "jobs")))
        return target


def create_kits(
    server: str, sites: Sequence[str], out: Path, days: int = 360, carrier: str = "nvflare"
) -> list[Path]:
    """Write the kits of a new federation; return their folders, the server's first."""
    host, port = _address(server)
    _check_sites(sites, host)
    if not 1 <= days <= 360:
        raise ValueError(f"certificates are valid for 1 to 360 days, not {days}")
    if carrier not in CARRIERS:
        raise ValueError(f"messages travel with {' or '.join(CARRIERS)}, not {carrier!r}")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty, and keys are never overwritten: choose a new folder")
    with new_folder(out) as folder:
        folder.chmod(0o700)
        made, authority = _provision(folder / "provisioning", host, port, sites, days)
        (folder / "authority").mkdir(mode=0o700)
        shutil.copy(made.parent / "state" / "cert.json", folder / "authority")
        (folder / "authority" / "cert.json").chmod(0o600)
        for name, source in {"server": host, **{site: site for site in sites}}.items():
            copy = _copy_settings if carrier == "nvflare" else _copy_certificates
            copy(made / source, folder / name)
            about = {"carrier": carrier, "name": name, "host": host, "port": port}
            about |= {"format": FORMAT, "sites": sites if name == "server" else ()}
            (folder / name / "kit.json").write_text(json.dumps(about))
        if carrier == "nvflare":
            shutil.copytree(made / ADMIN, folder / "server" / "admin")
        else:
            _write_keys(folder, sites)
        for name in ("server", *sites):
            _sign(folder / name, authority)
        shutil.rmtree(folder / "provisioning")
    return [out / name for name in ("server", *sites)]


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host) or not port.isdigit():
        raise ValueError(f"the server is HOST:PORT, such as speech.example.org:8002, not {server!r}")
    if not 0 < int(port) < 65536:
        raise ValueError(f"a port is a number from 1 to 65535, not {port}")
    return host, int(port)


def _check_sites(sites: Sequence[str], host: str) -> None:
    reserved = {"server", "authority", "provisioning", "admin", host}
    for site in sites:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", site) or site in reserved:
            raise ValueError(
                f"{site!r} cannot be the name of a site: use small letters, digits and hyphens, "
                f"and none of {', '.join(sorted(reserved))}"
            )
    if not sites or len(set(sites)) < len(sites):
        raise ValueError("name at least one site, and each site once")


def _provision(root: Path, host: str, port: int, sites: Sequence[str], days: int) -> tuple[Path, Any]:
    """Make certificates and settings with NVFLARE; return their folder and the authority's private key."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from nvflare.lighter.impl import cert, static_file, workspace
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    people: list[dict[str, Any]] = [
        {"name": host, "type": "server", "fed_learn_port": port, "admin_port": port},
        *({"name": site, "type": "client"} for site in sites),
        {"name": ADMIN, "type": "admin", "role": "project_admin"},
    ]
    people = [{**person, "org": "antiphon"} for person in people]
    project = prepare_project({"api_version": 3, "name": "antiphon", "participants": people})
    static = static_file.StaticFileBuilder(config_folder="config", scheme="grpc")
    builders = [workspace.WorkspaceBuilder(), static, cert.CertBuilder(root_valid_days=days)]
    context = Provisioner(str(root), builders).provision(project, logger=_Quiet())
    if context.get("build_error"):
        raise ValueError("NVFLARE could not make the kits: see the messages above")
    made = root / "antiphon" / "prod_00"
    state = json.loads((made.parent / "state" / "cert.json").read_text())
    return made, load_pem_private_key(state["root_pri_key"].encode(), password=None)


class _Quiet:
    """A logger that passes errors on only."""

    def debug(self, text: str) -> None: ...
    def info(self, text: str) -> None: ...
    def warning(self, text: str) -> None: ...
    def error(self, text: str) -> None:
        raise ValueError(text)


def _copy_certificates(source: Path, kit: Path) -> None:
    own = ("server.crt", "server.key") if kit.name == "server" else ("client.crt",)
    (kit / STARTUP).mkdir(parents=True)
    for name in ("rootCA.pem", *own):
        shutil.copy(source / "startup" / name, kit / STARTUP)


def _write_keys(kits: Path, sites: Sequence[str]) -> None:
    """Write the keys with which sites sign what they say to Flower; the server gets the public halves."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    public = kits / "server" / STARTUP / SITE_KEYS
    public.mkdir()
    for site in sites:
        key = generate_private_key(SECP384R1())
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        (kits / site / STARTUP / "node.key").write_bytes(secret)
        (public / f"{site}.pub").write_bytes(
            key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        )


def _copy_settings(source: Path, kit: Path) -> None:
    """Write the settings and certificates that NVFLARE reads."""
    for part in ("startup", "local"):
        shutil.copytree(source / part, kit / ENGINE / part)
    for script in (kit / ENGINE).rglob("*.sh"):
        script.unlink()  # antiphon starts the processes
    for name, settings in _settings(kit / ENGINE / "local", kit.name == "server").items():
        (kit / ENGINE / "local" / name).write_text(json.dumps(settings, indent=2) + "\n")


def _settings(local: Path, is_server: bool) -> dict[str, Any]:
    """Return NVFLARE's settings of a participant: our relay, and no job."""
    resources = json.loads((local / "resources.json.default").read_text())
    unwanted = {"log_receiver", "site_log_streamer"}  # logs stay where they are written
    components = [part for part in resources["components"] if part["id"] not in unwanted]
    components.append({"id": "relay", "path": f"{RELAY}.{'ServerRelay' if is_server else 'SiteRelay'}"})
    resources["class_allow_list"] = [part["path"] for part in components]
    resources["components"] = components
    if not is_server:
        resources["allow_log_streaming"] = False
    refused = ("submit_job", "manage_job", "operate", "byoc", "shell_commands", "clone_job", "download_job")
    permissions = {"project_admin": {"view": "any", **dict.fromkeys(refused, "none")}}
    logs = json.loads((local / "log_config.json.default").read_text())
    for logger in logs["loggers"].values():
        logger["level"] = "WARNING"
    return {
        "resources.json": resources,
        "authorization.json": {"format_version": "1.0", "permissions": permissions},
        "log_config.json": logs,
    }


# --- Signatures -----------------------------------------------------------------------------------


def _signed_files(kit: Path) -> dict[str, str]:
    files = [path for path in sorted(kit.rglob("*")) if path.is_file()]
    names = {path.relative_to(kit).as_posix(): path for path in files}
    return {
        name: sha256_of(path)
        for name, path in names.items()
        if name not in ("kit.json", "kit.sig") and not name.startswith(f"{WORK}/")
    }


def _sign(kit: Path, authority: Any) -> None:
    from nvflare.lighter.utils import sign_content

    about = json.loads((kit / "kit.json").read_text())
    about["files"] = _signed_files(kit)
    (kit / "kit.json").write_text(json.dumps(about, indent=2) + "\n")
    (kit / "kit.sig").write_text(sign_content((kit / "kit.json").read_bytes(), authority))
    for path in [kit, *kit.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)


def open_kit(folder: Path) -> Kit:
    """Return a kit; ValueError if it was changed or has expired, or if others can read its keys."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509 import load_pem_x509_certificate
    from nvflare.lighter.utils import verify_cert, verify_content

    folder = folder.resolve()  # processes of the carrier work in folders of their own
    what = "kit: give a folder that antiphon federation create made"
    about = read_object(folder / "kit.json", FORMAT, what, check_all=False)
    startup = folder / ENGINE / "startup"
    own = "server" if about["name"] == "server" else "client"
    try:
        root = load_pem_x509_certificate((startup / "rootCA.pem").read_bytes())
        certificate = load_pem_x509_certificate((startup / f"{own}.crt").read_bytes())
        verify_content(
            (folder / "kit.json").read_bytes(), (folder / "kit.sig").read_text(), root.public_key()
        )
        verify_cert(certificate, root.public_key())
    except (InvalidSignature, ValueError, OSError) as error:
        raise ValueError(_tampered(folder, str(error) or "its signature does not match")) from None
    found, signed = _signed_files(folder), about["files"]
    if changed := sorted(
        name for name in found.keys() | signed.keys() if found.get(name) != signed.get(name)
    ):
        raise ValueError(_tampered(folder, f"{changed[0]} was changed"))
    for path in folder.rglob("*.key"):
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ValueError(f"others can read the private key {path}: chmod 600 it, or get a new kit")
    ends, now = certificate.not_valid_after_utc, datetime.now(UTC)
    if not certificate.not_valid_before_utc <= now < ends:
        raise ValueError(f"the certificate in {folder} was valid until {ends:%Y-%m-%d}: ask for a new kit")
    fingerprint, carrier = root.fingerprint(hashes.SHA256()).hex(), about.get("carrier", "nvflare")
    where = (about["host"], about["port"], tuple(about["sites"]))
    return Kit(folder, about["name"], *where, fingerprint, ends, carrier)


def _tampered(folder: Path, why: str) -> str:
    return f"{folder} is not as it was signed ({why}): ask for a new kit, and do not use this one"
