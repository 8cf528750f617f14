"""Processes of Flower for a kit. They are started with `python -m`, and end with their starter.

    python -m antiphon.federation.flower_process server|site KIT
    python -m antiphon.federation.flower_process sites KIT

The last prints one line of JSON: the sites that are connected.

A SuperLink of Flower 1.41 offers more at its port than sites need, and does not ask who calls. Whoever
reaches the port may register a key, or start a run, whose code then runs on the server and at the sites. So
here the port answers the Fleet API alone, and only the keys in the server's kit are known.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from antiphon.federation.engine_process import connect
from antiphon.federation.kits import SITE_KEYS, STARTUP, WORK
from antiphon.federation.nvflare_process import end_with_starter
from antiphon.records.files import write_text

# Read when flwr is imported, which is later.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_LOG_LEVEL": "WARNING"}

FLEET = "/v1/fleet/"  # the part of a SuperLink that sites need
CONNECTED = (
    "connected.json"  # in the working folder of the server's kit: who is connected; touched every second
)
LOOK = 0.02  # seconds between two looks at what has arrived
RETRY = 2.0  # seconds before a site connects again


def main(role: str, folder: str, name: str = "") -> None:
    kit = Path(folder)
    if role == "sites":
        print(json.dumps(_connected(kit / WORK / CONNECTED)))
        return
    end_with_starter()
    about = json.loads((kit / "kit.json").read_text())
    if role == "server":
        _serve(kit, about["port"], about["sites"])
    else:
        _relay(kit, f"{about['host']}:{about['port']}")


def _connected(path: Path) -> dict[str, Any]:
    if path.exists() and time.time() - path.stat().st_mtime < 5.0:
        return {"sites": json.loads(path.read_text())}
    return {"error": "the server of this federation does not run"}


def _note(path: Path, text: str) -> None:
    if path.exists() and path.read_text() == text:
        path.touch()
    else:
        write_text(path, text)


def _serve(kit: Path, port: int, sites: list[str]) -> None:
    """Answer sites over TLS, and pass messages between them and the antiphon process of the server."""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.superlink.main import create_app

    from antiphon.federation.flower_relay import ServerRelay

    app, startup = create_app(), kit / STARTUP
    app.state.enable_supernode_auth = True  # no site registers itself
    state = app.state.linkstate_factory.state()
    keys = {site: load_ssh_public_key((startup / SITE_KEYS / f"{site}.pub").read_bytes()) for site in sites}
    relay = ServerRelay(state, {site: public_key_to_bytes(key) for site, key in keys.items()})
    threading.Thread(target=_listen, args=(_fleet_only(app), startup, port), daemon=True).start()
    channel = connect()
    reader = threading.Thread(target=relay.read, args=(channel,), daemon=True)
    reader.start()
    looked = 0.0
    while reader.is_alive():
        relay.step(channel)
        if time.monotonic() - looked > 1.0:
            if not relay.beat():
                raise RuntimeError("Flower has ended the run")  # another one is started
            _note(kit / WORK / CONNECTED, json.dumps(sorted(relay.connected())))
            looked = time.monotonic()
        time.sleep(LOOK)


def _fleet_only(app: Any) -> Any:
    from starlette.responses import PlainTextResponse

    async def filtered(scope: Any, receive: Any, send: Any) -> None:
        allowed = scope["type"] == "http" and scope["path"].startswith(FLEET)
        await (app if allowed else PlainTextResponse("not found", 404))(scope, receive, send)

    return filtered


def _listen(app: Any, startup: Path, port: int) -> None:
    import uvicorn

    tls = {"ssl_certfile": startup / "server.crt", "ssl_keyfile": startup / "server.key"}
    try:
        uvicorn.run(app, host="0.0.0.0", port=port, lifespan="off", log_level="warning", **tls)
    finally:
        os._exit(1)  # a port in use, for example: the starter tries again


def _relay(kit: Path, server: str) -> None:
    """Connect, and connect again whenever the server was gone."""
    import httpx

    from antiphon.federation.flower_site import SiteRelay

    last = ""
    while True:
        try:
            SiteRelay(server, kit / STARTUP / "rootCA.pem", kit / STARTUP / "node.key").run()
        except (httpx.HTTPError, OSError) as error:
            text = f"{type(error).__name__}: {error}"
            if text != last:  # a server may be away for days
                print(time.strftime("%F %T"), text, file=sys.stderr, flush=True)
            last = text
        time.sleep(RETRY * random.uniform(0.5, 1.5))


if __name__ == "__main__":
    main(*sys.argv[1:])
