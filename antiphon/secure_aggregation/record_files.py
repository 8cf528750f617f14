"""What a member of secure aggregation remembers on its disk, so that it reveals once for an update."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from antiphon.pools.remote_messages import Message as Packed
from antiphon.pools.remote_messages import pack, unpack
from antiphon.records.files import Damaged, make_folder, read_whole, replace_file, sync, write_json
from antiphon.records.reading import read_as
from antiphon.secure_aggregation.member import Revealed

LAST, USED = "last.message", "used.json"
USED_FORMAT = "antiphon-revealed/1"


@dataclass(frozen=True)
class UsedFile:
    """used.json: digests of the tasks and updates that were revealed."""

    format: ClassVar = USED_FORMAT
    what: ClassVar = "list of what a client revealed"
    advice: ClassVar = "Restore it from a copy: without it, the client could reveal an update twice"
    digests: Sequence[str]


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
        if not os.path.lexists(path):
            return None
        try:
            head, tensors = unpack(Packed.split(read_whole(path)))
        except ValueError as error:
            raise Damaged(f"{path}: {error}. {UsedFile.advice}") from None
        answers = []
        for number, answer in enumerate(head["answers"]):
            prefix = f"{number}/"
            own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            answers.append((answer, own))
        return Revealed(head["session"], tuple(head["digests"]), tuple(answers))

    @cached_property
    def _used(self) -> set[str]:
        path = self.folder / USED
        if os.path.lexists(path):  # a link that leads nowhere is damage
            return set(read_as(UsedFile, path).digests)
        if (self.folder / LAST).exists():
            raise Damaged(f"{path} is missing. {UsedFile.advice}")
        return set()

    def has(self, digest: str) -> bool:
        return digest in self._used

    def add(self, revealed: Revealed, used: tuple[str, ...]) -> None:
        make_folder(self.folder.parent)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        sync(self.folder.parent)
        digests = sorted(self._used.union(used))
        body = {"format": USED_FORMAT, "digests": digests}
        write_json(self.folder / USED, body, indent=None, is_private=True)
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
        replace_file(self.folder / LAST, lambda path: path.write_bytes(message), is_private=True)
        self._used.update(used)
        self.last = revealed
