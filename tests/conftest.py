from __future__ import annotations

import os
import signal
from collections.abc import Iterator

# Must be set before torch is imported: the last bit of a sum depends on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from command import start_fork_server
from hypothesis import settings
from world import World, make_world

# A shell starts commands in the background with SIGINT ignored, and nohup with SIGHUP. Tests send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Needs Flower, which lives in an environment of its own: it is run by hand, never collected.
# And a command of its own, not a module. And a package of its own, which tests import by its own name.
collect_ignore = ["fixtures/make_flower_aggregation.py", "faulty.py", "stranger"]

# How long one example takes depends on who else uses the machine and says nothing about the code.
settings.register_profile("antiphon", deadline=None)
settings.load_profile("antiphon")


@pytest.fixture(scope="session", autouse=True)
def fsync_does_not_wait() -> Iterator[None]:
    """Only a cut of the power could tell, and `integration/test_power_cut.py` has processes of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Twelve speakers' tones, imported and turned into features once."""
    return make_world(tmp_path_factory.mktemp("world"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tests that fork a clean process are in integration/; the others need not wait for it."""
    if any("integration" in item.path.parts for item in session.items):
        start_fork_server()
