"""The Festival speech synthesis system, with all English voices that are installed.

One process is kept running: starting it takes longer than a sentence. What it says does not depend on what it
said before (a test compares). Voices take a rate. Their pitch is changed by resampling, which also moves the
formants, as if the speaker were smaller or larger.
"""

from __future__ import annotations

import re
import select
import subprocess
import tempfile
import threading
import weakref
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data.tts.synthesiser import (
    TIMEOUT,
    SilentError,
    Voice,
    check_voice,
    find_program,
    output_of,
    read_speech,
)

ENGLISH = ("cmu_us_", "nitech_us_", "kal_", "ked_", "rab_", "don_", "en1_", "us1_", "us2_", "us3_")
INSTALL = "apt-get install festival festvox-us-slt-hts"
DONE = "said-it"
SAY = "(define (say_it text file) (utt.save.wave (utt.synth (eval (list 'Utterance 'Text text))) file 'riff))"
_lock = threading.Lock()


class Festival:
    """A `Synthesiser`."""

    def __init__(self) -> None:
        self._program = find_program("festival", INSTALL)
        self._process: subprocess.Popen[bytes] | None = None
        if not self.voices:
            raise ValueError("festival: it has no English voice, apt-get install festvox-us-slt-hts")

    def __reduce__(self) -> tuple[Any, ...]:
        return Festival, ()  # another process starts its own

    @cached_property
    def version(self) -> str:
        match = re.search(r"System: (\S+)", output_of([self._program, "--version"]))
        return f"festival {match[1]}" if match else "festival"

    @cached_property
    def voices(self) -> tuple[str, ...]:
        names = re.findall(r"\w+", output_of([self._program, "--batch", "(print (voice.list))"]))
        return tuple(name for name in sorted(names) if name.startswith(ENGLISH))

    def say(self, text: str, voice: Voice) -> np.ndarray:
        check_voice(voice, self.voices)
        slower = voice.pitch / voice.rate  # resampling to the pitch will make it faster again
        # The voice sets its own stretch, so ours comes after it; HTS voices have another setting.
        stretch = f"(Parameter.set 'Duration_Stretch {slower:.4f})"
        if voice.name.endswith("_hts"):
            stretch = f'(set! hts_engine_params (cons \'("-r" {1 / slower:.4f}) hts_engine_params))'
        words = re.sub(r'["\\]', " ", text)  # these would end the string
        with tempfile.TemporaryDirectory() as folder:
            sound = Path(folder) / "sound.wav"
            self._order(f'(voice_{voice.name})\n{stretch}\n(say_it "{words}" "{sound}")\n')
            return read_speech(sound, voice)

    def _order(self, orders: str) -> None:
        """Have Festival execute orders; after an error it goes on with the next one."""
        with _lock:
            process = self._running()
            assert process.stdin is not None
            try:
                process.stdin.write(f'{orders}(format stderr "{DONE}\\n")\n'.encode())
                process.stdin.flush()
                self._wait(process)
            except (OSError, SilentError) as error:
                process.kill()
                self._process = None
                raise SilentError(f"festival gave up: {error}") from None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            command = [self._program, "--pipe"]
            pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
            self._process = subprocess.Popen(command, stdin=pipe, stdout=nothing, stderr=pipe, bufsize=0)
            weakref.finalize(self, _end, self._process)
            assert self._process.stdin is not None
            self._process.stdin.write(f"{SAY}\n".encode())
        return self._process

    @staticmethod
    def _wait(process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None  # standard output is buffered
        output = b""
        while DONE.encode() not in output:
            if not select.select([process.stderr], [], [], TIMEOUT)[0]:
                raise SilentError(f"no answer in {TIMEOUT:.0f} s")
            if not (piece := process.stderr.read(1 << 16)):
                raise SilentError("it ended")
            output += piece


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
