"""Random damage to files: bytes, lines, values of JSON, and other things in place of a file. Seeded."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, -(2**70), 10**400, 1e308, 1e-320, float("nan"), float("inf"), -0.0,
    "", " ", "\0", "../victim", "/", ".", "\ud800", "a" * 5000, "é\u0301", "1e999", "nan", "{", "\u202e",
    [], {}, [[]], {"": None}, [None] * 3, {"sha256": "0"}, {"bytes": None},
)  # fmt: skip


# --- Bytes and lines ------------------------------------------------------------------------------


def flip_bits(data: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8, 64)) if data else 0):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def cut_off(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def empty(data: bytes, chance: random.Random) -> bytes:
    return b""


def remove_part(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data[:start] + data[start + chance.choice((1, 2, 16, 1000)) :]


def repeat_part(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data[:start] + data[start : start + chance.choice((1, 16, 1000))] * 2 + data[start + 16 :]


def insert_noise(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data[:start] + chance.randbytes(chance.choice((1, 4, 100))) + data[start:]


def blank_part(data: bytes, chance: random.Random) -> bytes:
    start, size = chance.randrange(len(data) + 1), chance.choice((1, 64, 4096))
    return (
        data[:start]
        + chance.choice((b"\0", b"\xff")) * len(data[start : start + size])
        + data[start + size :]
    )


def shuffle_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    chance.shuffle(lines)
    return b"\n".join(lines)


def change_word(data: bytes, chance: random.Random) -> bytes:
    """Replace one word of a text, with its separators left alone."""
    words = data.split(b" ")
    place = chance.randrange(len(words))
    words[place] = str(chance.choice(HOSTILE[:30])).encode(errors="surrogatepass")
    return b" ".join(words)


BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip_bits, flip_bits, flip_bits, cut_off, cut_off, empty, remove_part, repeat_part, insert_noise,
    blank_part, shuffle_lines, change_word,
)  # fmt: skip


# --- Values ---------------------------------------------------------------------------------------


def change_value(tree: Any, chance: random.Random) -> Any:
    """Return a tree of objects and lists in which one value is hostile, gone, or given another name."""
    tree = copy.deepcopy(tree)
    places = list(_places(tree))
    if not places:
        return chance.choice(HOSTILE)
    holder, key = chance.choice(places)
    how = chance.randrange(6)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder[str(chance.choice(HOSTILE[14:24]))] = holder.pop(key)
    elif how == 2:
        holder[key] = [holder[key]] * chance.choice((1, 2, 50))
    elif how == 3:
        deep = holder[key]
        for _ in range(chance.choice((3, 70, 500))):
            deep = {"a": deep}
        holder[key] = deep
    else:
        holder[key] = chance.choice(HOSTILE)
    return tree


def _places(tree: Any) -> Any:
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from _places(tree[key])


def change_json(data: bytes, chance: random.Random) -> bytes:
    """Change a value of a JSON file, or of one of its lines; the object's own checksum goes."""
    try:
        return _edited(data, chance)
    except ValueError:
        lines = data.split(b"\n")
        place = chance.randrange(len(lines))
        try:
            lines[place] = _edited(lines[place], chance)
        except ValueError:
            return change_word(data, chance)
        return b"\n".join(lines)


def _edited(data: bytes, chance: random.Random) -> bytes:
    tree = change_value(json.loads(data), chance)
    if isinstance(tree, dict):
        tree.pop("sha256", None)
    return json.dumps(tree).encode()


# --- Files ----------------------------------------------------------------------------------------


def replace_by_pipe(path: Path, chance: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def replace_by_loop(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.symlink_to(path.name)


def remove(path: Path, chance: random.Random) -> None:
    path.unlink()


def replace_by_neighbour(path: Path, chance: random.Random) -> None:
    others = [one for one in sorted(path.parent.iterdir()) if one.is_file() and one != path]
    if others:
        shutil.copyfile(chance.choice(others), path)


FILES = (replace_by_pipe, replace_by_folder, replace_by_loop, remove, replace_by_neighbour)


def damage(path: Path, chance: random.Random) -> str:
    """Damage a file; return the name of what was done."""
    if chance.random() < 0.12:
        change = chance.choice(FILES)
        change(path, chance)
        return change.__name__
    is_json = ".json" in path.name
    edit = change_json if is_json and chance.random() < 0.6 else chance.choice(BYTES)
    path.write_bytes(edit(path.read_bytes(), chance))
    return edit.__name__
