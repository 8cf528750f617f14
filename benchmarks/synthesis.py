"""Speech from text: how many times faster than real time, for each engine that is installed.

    python benchmarks/synthesis.py
    python benchmarks/synthesis.py --engines kokoro

The same sentences by some voices of every engine, FLAC encoding included, in one process and in two.
Processor seconds are those of this process and of the programs it starts; they hardly depend on who else uses
the machine.
"""

from __future__ import annotations

import gc
import resource
import time
from contextlib import closing
from typing import Any

from common import argument_parser, print_table, write_result

from antiphon.data.session_texts import TextRules
from antiphon.data.tts.spoken_corpus import plan_sayings, say_in_order
from antiphon.data.tts.synthesiser import ENGINES, Synthesiser, Voice, draw_voices

GOAL = 20.0  # times real time on two cores
TEXT = (
    "The committee met on Tuesday to hear what had become of the railway. Nobody had read the report, though "
    "all of them had an opinion about it. A letter from the company was read aloud, in which the delay was "
    "explained by the weather. It was decided, after some discussion, to write to the minister again. The "
    "chairman thanked those present and closed the meeting."
)


def processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure(
    name: str, engine: Synthesiser, voices: tuple[Voice, ...], num_processes: int
) -> dict[str, float]:
    """Seconds of speech over the seconds it took."""
    sayings = plan_sayings("sessions", [TextRules(None).read("one", [TEXT])], voices, len(voices), seed=0)
    began = time.perf_counter()
    with closing(say_in_order(sayings, voices, {name: engine}, num_processes)) as said:
        seconds = sum(0.0 if isinstance(spoken, str) else spoken.seconds for _, spoken in said)
    return {"speech_seconds": seconds, "times_real_time": seconds / (time.perf_counter() - began)}


def case(name: str, quick: bool) -> dict[str, Any]:
    engine = ENGINES[name]()
    voices = draw_voices({name: engine}, 1 if quick else 8, seed=0)
    told = {"version": engine.version, "two": measure(name, engine, voices, 1 if quick else 2)}
    began = processor_seconds()
    told["one"] = measure(name, engine, voices, 1)
    del engine
    gc.collect()  # programs that were kept running end, and their time is counted
    used = processor_seconds() - began
    told["times_real_time_per_processor"] = told["one"]["speech_seconds"] / used
    return told


def main() -> None:
    parser = argument_parser(__doc__, "synthesis")
    parser.add_argument("--engines", nargs="+", default=[], metavar="ENGINE", help="by default all of them")
    arguments = parser.parse_args()
    options = ["--engines", *arguments.engines] if arguments.engines else []
    found, missing = {}, {}
    for name in arguments.engines or ENGINES:
        try:
            found[name] = case(name, arguments.quick)
        except ValueError as reason:
            missing[name] = str(reason)
    rows = [
        (
            name,
            *(f"{own[which]['times_real_time']:.1f}" for which in ("one", "two")),
            f"{own['times_real_time_per_processor']:.1f}",
        )
        for name, own in found.items()
    ]
    print_table(("engine", "one process, × real time", "two", "per processor second"), rows)
    for name, reason in missing.items():
        print(f"{name} is not installed: {reason}")
    write_result(arguments, {"goal": GOAL, "engines": found, "missing": missing}, *options)


if __name__ == "__main__":
    main()
