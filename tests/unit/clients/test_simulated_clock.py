"""Devices, windows of the day and the time of a task, computed by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon import config
from antiphon.clients.availability import DAY, HOUR, Always, Charging, Diurnal
from antiphon.clients.device_table import DeviceTable, read_devices
from antiphon.clients.simulated_clock import Clock, Power, SimulatedClock, audio_trained
from antiphon.clients.simulated_devices import Bandwidth, Device, LogNormal, Pareto
from antiphon.core import Task

NAMES = [f"speaker/{number}" for number in range(2000)]
PARAMS = {"w": torch.zeros(250_000)}  # a megabyte: eight megabits
TABLE = "client,slowness,down,up,opens,hours\nada,0.5,8,2,,\nbob,2,4,1,22,8\n"


def write(folder: Path, text: str) -> str:
    path = folder / "devices.csv"
    path.write_text(text)
    return str(path)


def clock_of(folder: Path, **settings: Any) -> SimulatedClock:
    clock = Clock(DeviceTable(write(folder, TABLE)), **settings)
    return SimulatedClock(clock, {"ada": 10.0, "bob": 10.0}.__getitem__, 3)


# --- The time of a task ---------------------------------------------------------------------------


def test_a_task_takes_as_long_as_receiving_training_and_sending(tmp_path: Path) -> None:
    clock = clock_of(tmp_path)
    task = Task("train", PARAMS, {"epochs": 2})
    extra = 8 * (task.num_bytes - 1_000_000) / 1e6  # the configuration travels, too
    assert clock(task, "ada", 100.0) == pytest.approx(100 + 1 + extra / 8 + 0.5 * 20 + 4)
    assert clock(task, "bob", 0.0) == pytest.approx(2 + extra / 4 + 2 * 20 + 8)  # it is midnight
    assert clock(task, "server/rehearsal", 7.0) == 7.0
    assert clock.fastest(task, ["ada", "bob"])[1] == "ada"


def test_the_energy_of_a_task_is_that_of_computing_and_of_the_network(tmp_path: Path) -> None:
    clock = clock_of(tmp_path, power=Power(computing=3.0, network=2.0))
    task = Task("train", PARAMS, {"epochs": 2})
    extra = 8 * (task.num_bytes - 1_000_000) / 1e6
    assert clock.joules(task, "ada", False) == pytest.approx(2 * (1 + extra / 8 + 4) + 3 * 0.5 * 20)
    assert clock.joules(task, "ada", True) == pytest.approx(2 * (1 + extra / 8))  # it received the model
    assert clock.joules(task, "server/rehearsal", False) == 0.0


@pytest.mark.parametrize("settings", [{"computing": 0.0}, {"network": -1.0}, {"network": math.inf}])
def test_a_power_that_is_not_above_0_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Power(**settings)


def test_the_audio_of_a_task_is_that_of_its_epochs_or_steps() -> None:
    assert audio_trained({"epochs": 3, "steps": 0, "batch_seconds": 8.0}, 20.0) == 60.0
    assert audio_trained({"epochs": 1, "steps": 4, "batch_seconds": 8.0}, 20.0) == 32.0
    assert audio_trained({"epochs": 1, "steps": 4, "batch_seconds": 60.0}, 20.0) == 80.0
    assert audio_trained({"epochs": 1, "steps": 4, "batch_seconds": 0.0}, 20.0) == 80.0
    assert audio_trained({}, 20.0) == 20.0


def test_a_client_waits_until_it_is_available(tmp_path: Path) -> None:
    clock = clock_of(tmp_path, starts=20.0)
    task = Task("evaluate", {}, {})
    needs = clock.seconds(task, "bob")
    assert clock(task, "bob", 0.0) == pytest.approx(2 * HOUR + needs)  # its window opens at 22
    assert clock(task, "bob", 3 * HOUR) == pytest.approx(3 * HOUR + needs)
    assert clock(task, "bob", 10 * HOUR) == pytest.approx(26 * HOUR + needs)  # it closed at 6
    assert clock(task, "ada", 10 * HOUR) == 10 * HOUR + clock.seconds(task, "ada")


# --- Windows --------------------------------------------------------------------------------------


def test_windows_of_the_day_are_those_computed_by_hand() -> None:
    night = Diurnal(opens=22.0, hours=8.0, spread=0.0)
    for time, begins in ((0, 0), (5.9, 5.9), (6, 22), (12, 22), (22, 22), (29.5, 29.5), (30, 46)):
        assert night("x", 0, time * HOUR) == begins * HOUR
    assert Always()("x", 0, 12.5) == 12.5
    assert Diurnal(hours=24.0)("x", 0, 12.5) == 12.5


def test_every_client_has_its_own_window_and_the_same_every_day() -> None:
    window = Diurnal(opens=8.0, hours=1.0, spread=2.0)
    opens = [window(name, 4, 20 * DAY) - 20 * DAY for name in NAMES[:300]]
    assert np.mean(opens) / HOUR == pytest.approx(8.0, abs=0.5)
    assert np.std(opens) / HOUR == pytest.approx(2.0, abs=0.3)
    assert [window(name, 4, 21 * DAY) - 21 * DAY for name in NAMES[:300]] == opens
    assert [window(name, 5, 20 * DAY) - 20 * DAY for name in NAMES[:300]] != opens


def test_charging_is_at_another_hour_every_day_and_missed_on_some() -> None:
    charging = Charging(opens=12.0, hours=2.0, spread=1.0, missed=0.25)
    begins = [charging(name, 4, 20 * DAY) - 20 * DAY for name in NAMES]
    missed = sum(begin >= DAY for begin in begins) / len(begins)
    assert missed == pytest.approx(0.25, abs=0.03)
    assert begins != [charging(name, 4, 21 * DAY) - 21 * DAY for name in NAMES]
    assert all(charging(name, 4, charging(name, 4, 0.0)) == charging(name, 4, 0.0) for name in NAMES[:50])


# --- Distributions --------------------------------------------------------------------------------


def test_log_normal_slowness_has_its_median_and_spread() -> None:
    logs = [math.log(LogNormal(0.2, 0.7)(name, 1).slowness) for name in NAMES]
    assert np.median(logs) == pytest.approx(math.log(0.2), abs=0.06)
    assert np.std(logs) == pytest.approx(0.7, abs=0.04)


def test_pareto_slowness_has_its_tail() -> None:
    slowness = np.array([Pareto(0.1, 1.2)(name, 1).slowness for name in NAMES])
    assert slowness.min() >= 0.1
    for times in (2.0, 10.0):
        assert (slowness > 0.1 * times).mean() == pytest.approx(times**-1.2, abs=0.03)


@pytest.mark.parametrize("devices", [LogNormal(), Pareto()])
def test_the_seed_decides_the_device_of_a_client(devices: Any) -> None:
    assert devices("speaker/1", 3) == devices("speaker/1", 3)
    assert devices("speaker/1", 3) != devices("speaker/1", 4)
    assert devices("speaker/1", 3) != devices("speaker/2", 3)


def test_without_spread_all_clients_are_the_same() -> None:
    devices = LogNormal(0.3, 0.0, Bandwidth(10.0, 2.0, 0.0))
    assert {devices(name, 1) for name in NAMES[:9]} == {Device(0.3, 10.0, 2.0)}


@pytest.mark.parametrize(
    "settings",
    [
        {"devices": {"log_normal": {"slowness": 0.0}}},
        {"devices": {"log_normal": {"spread": -1.0}}},
        {"devices": {"pareto": {"tail": 0.0}}},
        {"devices": {"pareto": {"bandwidth": {"up": 0.0}}}},
        {"devices": {"device_table": {"path": ""}}},
        {"availability": {"diurnal": {"hours": 25.0}}},
        {"availability": {"charging": {"missed": 1.0}}},
        {"starts": 24.0},
    ],
)
def test_settings_without_a_meaning_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not |needs"):
        config.from_dict(Clock, settings)


# --- Tables ---------------------------------------------------------------------------------------


def test_a_table_gives_every_client_its_device(tmp_path: Path) -> None:
    devices = read_devices(write(tmp_path, TABLE))
    assert devices == {"ada": Device(0.5, 8, 2), "bob": Device(2, 4, 1, Diurnal(22, 8, 0))}


HEAD = "client,slowness,down,up\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("client,slowness,down\n", r"devices.csv:1: there is no column up"),
        ("client,slowness,down,up,colour\n", r"devices.csv:1: unknown column 'colour'"),
        ("client,slowness,down,up,up\n", r"devices.csv:1: a column is there twice"),
        ("client,slowness,down,up,opens\n", r"devices.csv:1: the columns opens and hours belong together"),
        ("", r"devices.csv:1: there is no column client"),
        (HEAD + "ada,1,2\n", r"devices.csv:2: 3 fields, and the header has 4"),
        (HEAD + "ada,1,2,3\nbob,1,fast,3\n", r"devices.csv:3: column down: 'fast' is not a finite number"),
        (HEAD + "ada,0,2,3\n", r"devices.csv:2: column slowness must be above 0, not 0"),
        (HEAD + "ada,1,2,1e999\n", r"devices.csv:2: column up: '1e999' is not a finite number"),
        (HEAD + "ada,1,2,3\n\nada,1,2,3\n", r"devices.csv:4: column client: 'ada' has a row already"),
        (HEAD + ",1,2,3\n", r"devices.csv:2: column client is empty"),
        (TABLE + "eve,1,2,3,25,8\n", r"devices.csv:4: columns opens, hours: a window opens at"),
        (TABLE + "eve,1,2,3,x,8\n", r"devices.csv:4: column opens: 'x' is not a finite number"),
    ],
)
def test_a_mistake_in_a_table_is_named_with_file_line_and_column(
    text: str, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=problem):
        read_devices(write(tmp_path, text))


def test_a_table_without_a_client_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no row for client 'eve'"):
        DeviceTable(write(tmp_path, TABLE))("eve", 0)
    with pytest.raises(ValueError, match=r"cannot read .*nowhere.csv: No such file"):
        read_devices(str(tmp_path / "nowhere.csv"))
    (tmp_path / "binary.csv").write_bytes(b"client,\xff\n")
    with pytest.raises(ValueError, match="it is not UTF-8 text"):
        read_devices(str(tmp_path / "binary.csv"))
