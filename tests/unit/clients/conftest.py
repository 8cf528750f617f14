"""A world in which not all was written down."""

from __future__ import annotations

import pytest
from world import World

SILENT = [f"speaker/s{number:02d}" for number in range(1, 8)]


@pytest.fixture
def unheard(world: World) -> World:
    """A world in which only the first speaker's words were written down."""
    return world.without_texts(SILENT)
