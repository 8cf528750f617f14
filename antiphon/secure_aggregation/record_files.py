"""What a member of secure aggregation remembers on its disk, so that it reveals once for an update."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from antiphon.pools.remote_messages import Message as Packed
from antiphon.pools.remote_messages import pack, unpack
from antiphon.records.files import replace_file, sync
from antiphon.secure_aggregation.member import Revealed

LAST, USED = "last.message", "used.txt"


class RecordFiles:
    """A `MemberRecord` in a folder that only its owner can read.

    Digests of updates that were revealed are on disk before the answers: if the process ends in between, the
    member reveals nothing more for that update.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def last(self) -> Revealed | None:
        path = self.folder / LAST
        if not path.exists():
            return None
        head, tensors = unpack(Packed.split(path.read_bytes()))
        answers = []
        for number, answer in enumerate(head["answers"]):
            prefix = f"{number}/"
            own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            answers.append((answer, own))
        return Revealed(head["session"], tuple(head["digests"]), tuple(answers))

    @cached_property
    def _used(self) -> set[str]:
        path = self.folder / USED
        return set(path.read_text().split()) if path.exists() else set()

    def has(self, digest: str) -> bool:
        return digest in self._used

    def add(self, revealed: Revealed, used: tuple[str, ...]) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / USED).open("a") as file:
            file.writelines(f"{digest}\n" for digest in used)
            file.flush()
            os.fsync(file.fileno())
        head = {
            "session": revealed.session,
            "digests": list(revealed.digests),
            "answers": [answer for answer, _ in revealed.answers],
        }
        tensors = {
            f"{number}/{name}": tensor
            for number, (_, own) in enumerate(revealed.answers)
            for name, tensor in own.items()
        }
        message = bytes(pack(head, tensors))
        replace_file(self.folder / LAST, lambda path: path.write_bytes(message))
        sync(self.folder)
        self._used.update(used)
        self.last = revealed
