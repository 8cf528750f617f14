"""Devices: clients whose names end in an even digit are slow."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.clients.simulated_devices import Device


@dataclass(frozen=True)
class TwoSpeeds:
    slow: float = 3.0

    def __call__(self, client: str, seed: int) -> Device:
        return Device(self.slow if int(client[-1]) % 2 == 0 else 1.0, down=10.0, up=10.0)
