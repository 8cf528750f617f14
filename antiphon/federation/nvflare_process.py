"""Processes of NVFLARE for a kit. They are started with `python -m`, and end with their starter.

    python -m antiphon.federation.nvflare_process server|site WORKSPACE NAME
    python -m antiphon.federation.nvflare_process sites ADMIN_KIT

The last prints one line of JSON: the sites that are connected.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import sys
import threading
from typing import Any

from antiphon.federation.kits import ADMIN

MODULES = {
    "server": ("nvflare.private.fed.app.server.server_train", "fed_server.json"),
    "site": ("nvflare.private.fed.app.client.client_train", "fed_client.json"),
}


def main(role: str, folder: str, name: str = "") -> None:
    if role in MODULES:
        end_with_starter()
        module, settings = MODULES[role]
        who = [f"uid={name}"] if role == "site" else []
        values = ["secure_train=true", *who, "org=antiphon", "config_folder=config"]
        sys.argv = [module, "-m", folder, "-s", settings, "--set", *values]
        runpy.run_module(module, run_name="__main__")
        return
    with contextlib.redirect_stdout(sys.stderr):  # NVFLARE prints, too
        answer = _connected(folder)
    print(json.dumps(answer), flush=True)
    os._exit(0)  # threads of the session would keep the process for seconds


def _connected(folder: str) -> dict[str, Any]:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    try:
        session = new_secure_session(ADMIN, folder, timeout=5.0)
        info = session.get_system_info()
        return {"sites": sorted(client.name for client in info.client_info)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def end_with_starter() -> None:
    """End this process and its children when standard input closes: its starter has ended, even by a kill."""

    def watch() -> None:
        import psutil

        os.read(0, 1)
        own = psutil.Process()
        for process in own.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        os.kill(own.pid, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
