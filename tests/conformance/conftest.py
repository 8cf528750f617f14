from __future__ import annotations

from typing import Any

import pytest
from twins import Twins, side_by_side

from antiphon.pools.torch_group import TorchGroup


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test of the pool `Twins` in two processes, from its first line to its last: one fork a test."""
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    if Twins not in arguments.values():
        return None
    side_by_side(lambda group: pyfuncitem.obj(**in_own_folder(arguments, group)))
    return True


def in_own_folder(arguments: dict[str, Any], group: TorchGroup) -> dict[str, Any]:
    """Give each process a folder of its own, where a test has one."""
    if "tmp_path" not in arguments:
        return arguments
    folder = arguments["tmp_path"] / f"process {group.rank}"
    folder.mkdir()
    return {**arguments, "tmp_path": folder}
