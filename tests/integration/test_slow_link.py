"""The slow link of `test_federation_chaos.py` does what it says, by the clock of processes at its ends.

    ANTIPHON_CHAOS=1 python -m pytest -s tests/integration/test_slow_link.py

prints what was measured.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest
from slow_link import Shape, Way, missing, namespaces, slow_link

NEAR, FAR = "antiphon-near", "antiphon-far"
ENDS = {NEAR: "10.78.0.1/24", FAR: "10.78.0.2/24"}
# Receives packets until there are none for a second, sends each back if asked to, and prints what it saw.
RECEIVER = """
import json, socket, sys, time
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
receiver.bind(("10.78.0.1", 7000))
print("ready", flush=True)
times, size = [], 0
while True:
    try:
        packet, sender = receiver.recvfrom(2000)
    except TimeoutError:
        break
    receiver.settimeout(1.0)
    times.append(time.monotonic())
    size += len(packet) + 28
    if sys.argv[1] == "echo":
        receiver.sendto(packet, sender)
print(json.dumps({"packets": len(times), "bytes": size, "seconds": times[-1] - times[0]}))
"""
# Sends packets, or sends and waits for each; prints the seconds of each round trip.
SENDER = """
import json, socket, sys, time
echo, number, size, pause = sys.argv[1] == "echo", int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.settimeout(0.9)
trips = []
for _ in range(number):
    began = time.monotonic()
    sender.sendto(bytes(size), ("10.78.0.1", 7000))
    if echo:
        try:
            sender.recv(2000)
            trips.append(time.monotonic() - began)
        except TimeoutError:
            pass
    time.sleep(pause)
print(json.dumps(trips))
"""


def test_a_packet_arrives_after_the_packets_before_it_and_the_delay() -> None:
    way = Way(Shape(delay=0.05, loss=0.0, rate=8000.0, queue=2500), random.Random(0))
    way.put(b"a" * 1000, now=10.0)  # takes a second
    way.put(b"b" * 500, now=10.5)  # waits for half a second, takes half a second
    assert way.next_arrival() == pytest.approx(11.05)
    assert list(way.arrived(11.0)) == []
    assert [packet[:1] for packet in way.arrived(11.06)] == [b"a"]
    assert way.next_arrival() == pytest.approx(11.55)
    assert [packet[:1] for packet in way.arrived(11.56)] == [b"b"]
    assert way.next_arrival() is None


def test_a_packet_that_finds_the_queue_full_is_dropped() -> None:
    way = Way(Shape(delay=0.0, loss=0.0, rate=8000.0, queue=2500), random.Random(0))
    for _ in range(3):
        way.put(bytes(1000), now=0.0)
    assert (way.dropped, len(list(way.arrived(2.0)))) == (1, 2)
    way.put(bytes(1000), now=1.0)
    way.put(bytes(1000), now=2.0)
    assert (way.dropped, len(list(way.arrived(4.1)))) == (1, 2)


def test_the_share_of_lost_packets_is_that_of_the_shape() -> None:
    way = Way(Shape(loss=0.01, rate=1e9, queue=10**9), random.Random(0))
    for _ in range(100_000):
        way.put(b"", now=0.0)
    assert 900 < way.dropped < 1100  # 3 standard deviations are 94


@pytest.fixture
def ends() -> Iterator[None]:
    if why := missing():
        pytest.skip(why)
    if not os.environ.get("ANTIPHON_CHAOS"):
        pytest.skip("it takes 15 s: set ANTIPHON_CHAOS=1")
    with namespaces(NEAR, FAR):
        yield


def send(way: str, number: int, size: int, pause: float) -> tuple[dict[str, float], list[float]]:
    """Send packets from FAR to NEAR; return what was received, and the seconds of round trips."""

    def start(namespace: str, program: str, *words: str) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", namespace, sys.executable, "-c", program, *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    receiver = start(NEAR, RECEIVER, way)
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "ready\n"
    sent, _ = start(FAR, SENDER, way, str(number), str(size), str(pause)).communicate(timeout=60)
    seen, _ = receiver.communicate(timeout=60)
    return json.loads(seen), json.loads(sent)


@pytest.mark.usefixtures("ends")
def test_a_round_trip_takes_the_delay_of_both_ways() -> None:
    with slow_link(ENDS, Shape(delay=0.05, loss=0.0)):
        _, trips = send("echo", 20, 100, 0.0)
    print(f"\nround trips of 20 packets: {1000 * min(trips):.1f} to {1000 * max(trips):.1f} ms")
    assert len(trips) == 20
    assert min(trips) >= 0.1
    assert min(trips) < 0.15  # others may use the machine, but not for all of them


@pytest.mark.usefixtures("ends")
def test_the_link_loses_its_share_of_packets() -> None:
    with slow_link(ENDS, Shape(loss=0.01)) as (_, back):
        seen, _ = send("count", 5000, 100, 0.0002)
    print(f"\nlost: {5000 - seen['packets']:.0f} of 5000 packets")
    assert 20 < 5000 - seen["packets"] < 85  # 50; 5 standard deviations are 35
    assert back.dropped >= 5000 - seen["packets"]


@pytest.mark.usefixtures("ends")
def test_the_link_is_as_fast_as_its_rate() -> None:
    with slow_link(ENDS, Shape(loss=0.0, rate=10e6)) as (_, back):
        seen, _ = send("count", 4000, 1400, 0.0005)
    rate = 8 * seen["bytes"] / seen["seconds"] / 1e6
    print(f"\nrate: {rate:.2f} Mbit/s; {back.dropped} of 4000 packets found the queue full")
    assert 7.0 < rate < 10.2  # less, where others use the machine
    assert back.dropped > 0
