"""Kits are as the authority signed them, or they are refused."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

import antiphon
from antiphon.federation.kits import create_kits, open_kit


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("federation") / "kits"
    create_kits("localhost:8002", ["berlin", "oslo"], folder, days=30)
    return folder


@pytest.fixture
def oslo(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "oslo", tmp_path / "oslo"))


def test_a_federation_has_a_kit_for_the_server_and_for_each_site(made: Path) -> None:
    assert {path.name for path in made.iterdir()} == {"server", "berlin", "oslo", "authority"}
    server, site = open_kit(made / "server"), open_kit(made / "oslo")
    assert (server.name, server.sites) == ("server", ("berlin", "oslo"))
    assert (site.name, site.sites, site.host, site.port) == ("oslo", (), "localhost", 8002)
    assert server.fingerprint == site.fingerprint


def test_a_kit_is_found_from_any_folder(oslo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVFLARE's processes change to a folder of their own."""
    monkeypatch.chdir(oslo.parent)
    kit = open_kit(Path("oslo"))
    assert kit.folder == oslo.resolve()
    assert kit.workspace().is_absolute()


def test_only_the_owner_can_read_kits_and_keys(made: Path) -> None:
    for path in [made, *made.rglob("*")]:
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path
    assert len(list(made.rglob("*.key"))) == 4  # server, its administrator, two sites
    for kit in ("server", "berlin", "oslo"):
        assert not list((made / kit).rglob("cert.json"))  # the authority's key stays with it


def test_every_changed_added_or_removed_file_is_noticed(made: Path, tmp_path: Path) -> None:
    files = [path.relative_to(made / "oslo") for path in (made / "oslo").rglob("*") if path.is_file()]
    assert len(files) > 8
    for number, name in enumerate(files):
        copy = Path(shutil.copytree(made / "oslo", tmp_path / str(number)))
        data = bytearray((copy / name).read_bytes())
        data[len(data) // 2] ^= 1
        (copy / name).write_bytes(bytes(data))
        with pytest.raises(ValueError, match=r"not as it was signed|holds no kit|has format"):
            open_kit(copy)
        (copy / name).unlink()
        with pytest.raises(ValueError):
            open_kit(copy)


def test_a_file_more_is_noticed(oslo: Path) -> None:
    (oslo / "engine" / "local" / "custom.py").write_text("print()")
    with pytest.raises(ValueError, match=r"custom.py was changed\): ask for a new kit"):
        antiphon.join_federation(oslo, data=oslo, dry_run=True)
    with pytest.raises(ValueError, match=r"engine/local/custom.py was changed"):
        open_kit(oslo)


def test_a_kit_with_a_certificate_of_another_federation_is_refused(oslo: Path, tmp_path: Path) -> None:
    create_kits("localhost:8002", ["oslo"], tmp_path / "other")
    shutil.copy(tmp_path / "other/oslo/engine/startup/rootCA.pem", oslo / "engine/startup/rootCA.pem")
    with pytest.raises(ValueError, match="not as it was signed"):
        open_kit(oslo)


def test_a_key_that_others_can_read_is_refused(oslo: Path) -> None:
    (oslo / "engine" / "startup" / "client.key").chmod(0o644)
    with pytest.raises(ValueError, match="others can read the private key"):
        open_kit(oslo)


def test_an_expired_kit_is_refused(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import datetime, timedelta, tzinfo

    import antiphon.federation.kits as module

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(days=31)

    monkeypatch.setattr(module, "datetime", Later)
    with pytest.raises(ValueError, match=r"was valid until .*: ask for a new kit"):
        open_kit(made / "oslo")


def test_what_is_written_while_a_kit_is_used_is_not_part_of_it(oslo: Path) -> None:
    kit = open_kit(oslo)
    (kit.work / "notes").write_text("anything")
    assert "/tmp/nvflare" not in (kit.workspace() / "local" / "resources.json").read_text()
    assert open_kit(oslo) == kit


@pytest.mark.parametrize(
    ("server", "sites", "message"),
    [
        ("localhost", ["a"], "HOST:PORT"),
        ("local host:80", ["a"], "HOST:PORT"),
        ("localhost:99999", ["a"], "65535"),
        ("localhost:80", ["Oslo"], "small letters"),
        ("localhost:80", ["../x"], "small letters"),
        ("localhost:80", ["server"], "none of"),
        ("localhost:80", ["a", "a"], "each site once"),
        ("localhost:80", [], "at least one site"),
    ],
)
def test_wrong_names_are_refused(server: str, sites: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        create_kits(server, sites, tmp_path / "kits")
    assert not (tmp_path / "kits").exists()


def test_keys_are_never_overwritten(made: Path) -> None:
    with pytest.raises(ValueError, match="keys are never overwritten"):
        create_kits("localhost:8002", ["berlin"], made)


def test_a_kit_for_flower_has_the_key_of_its_site_and_the_server_has_all_public_keys(tmp_path: Path) -> None:
    folder = tmp_path / "kits"
    create_kits("localhost:8002", ["berlin", "oslo"], folder, days=30, carrier="flower")
    assert open_kit(folder / "oslo").carrier == open_kit(folder / "server").carrier == "flower"
    keys = {path.relative_to(folder).as_posix() for path in folder.rglob("*.key")}
    sites = {f"{site}/engine/startup/node.key" for site in ("berlin", "oslo")}
    assert keys == {"server/engine/startup/server.key", *sites}
    for path in [folder, *folder.rglob("*")]:
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path
    for site in ("berlin", "oslo"):
        private = load_ssh_private_key((folder / site / "engine/startup/node.key").read_bytes(), None)
        public = load_ssh_public_key((folder / "server/engine/startup/sites" / f"{site}.pub").read_bytes())
        assert private.public_key() == public
    (folder / "server/engine/startup/sites/oslo.pub").write_text("changed")
    with pytest.raises(ValueError, match=r"sites/oslo.pub was changed"):
        open_kit(folder / "server")


def test_an_unknown_carrier_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"messages travel with nvflare or flower, not 'pigeon'"):
        create_kits("localhost:8002", ["oslo"], tmp_path / "kits", carrier="pigeon")
