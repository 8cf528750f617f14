"""Files of others and our own, damaged or made to do harm: refused by name, and never in a traceback."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import save_file

from antiphon.records import reading
from antiphon.records.reading import (
    limited_lines,
    parse_json,
    parse_yaml,
    read_as,
    read_lines_as,
    read_object,
    read_tensors,
    read_text,
    read_yaml,
)
from antiphon.records.schema import Amount, Count

DEEP = 100_000


@dataclass(frozen=True)
class Pet:
    """A file of the tests."""

    format: ClassVar = "pet/1"
    what: ClassVar = "pet"
    advice: ClassVar = "Adopt another"
    name: str
    legs: Count
    weight: Amount | None = None
    toys: dict[str, list[float]] = field(default_factory=dict)


def write(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps({"format": "pet/1", "name": "Tom", "legs": 4} | fields))
    return path


# --- JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "1e999",
        "-1e999",
        "NaN",
        "Infinity",
        "[-Infinity]",
        "1" * 400,
        "1" * 5000,
        str(2**63),
        '{"a": ' * DEEP,
        "[" * DEEP,
        "[" * 65 + "]" * 65,
        r'"\ud800"',
        r'{"\udc80": 1}',
        b'"\xff"',
        "",
        "{",
        "1 2",
    ],
    ids=lambda text: str(text[:12]),
)
def test_json_that_cannot_be_used_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_json_is_read_as_it_is() -> None:
    text = '{"a": [0.1, -3, 1e-300, true, null, "\\ud83d\\ude00"], "b": {"c": 9223372036854775807}}'
    assert parse_json(text) == {"a": [0.1, -3, 1e-300, True, None, "😀"], "b": {"c": 2**63 - 1}}
    assert parse_json("[" * 64 + "]" * 64) == json.loads("[" * 64 + "]" * 64)
    assert parse_json(b'"caf\xc3\xa9"') == "café"


def test_fields_of_others_may_hold_any_number_but_no_depth() -> None:
    assert parse_json("[NaN, 1e999]", is_finite=False)[1] == float("inf")
    assert parse_json("1" * 400, is_finite=False) == int("1" * 400)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * DEEP, is_finite=False)


# --- YAML -----------------------------------------------------------------------------------------


def laughs(levels: int) -> str:
    """Each line has the one before it nine times."""
    lines = ["a0: &a0 [lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        laughs(9),
        laughs(40),
        "a: &a [*a]",
        "&a {b: *a}",
        "[" * DEEP,
        "{" * DEEP,
        "- " * DEEP,
        "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 200)).replace("*a0", "x"),
        "a: b: c",
        "{a: 1",
        "a: 2001-99-99",
        "!!int ''",
        "!!bool maybe",
        "!!timestamp x",
        "!!python/object/apply:os.system [ls]",
        "a: \0",
        "a: " + "1" * 5000,
        "x: " + "y" * reading.MAX_YAML,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_yaml_that_cannot_be_used_is_a_value_error_on_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]{1,300}\Z"):
        parse_yaml(text)


def test_yaml_is_read_as_it_is_with_its_aliases_and_merges() -> None:
    text = "base: &b {lr: 0.1, steps: 3}\nown: {<<: *b, steps: 4}\nlist: [*b, 1.5, on, null]\n"
    base = {"lr": 0.1, "steps": 3}
    assert parse_yaml(text) == {"base": base, "own": {"lr": 0.1, "steps": 4}, "list": [base, 1.5, True, None]}
    assert parse_yaml("") is None
    assert parse_yaml(laughs(4))["a2"] == [[["lol"]] * 9] * 9


def test_a_mistake_in_yaml_is_named_with_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("recipe: dga\nseed: [1\n")
    with pytest.raises(ValueError, match=r"mine\.yaml: line 3: "):
        read_yaml(tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").write_bytes(b"recipe: caf\xe9\n")
    with pytest.raises(ValueError, match=r"mine\.yaml is not UTF-8 text \(byte 12\)"):
        read_yaml(tmp_path / "mine.yaml")
    with pytest.raises(ValueError, match=r"no\.yaml: No such file"):
        read_yaml(tmp_path / "no.yaml")


# --- Files ----------------------------------------------------------------------------------------


def test_a_file_is_read_as_its_dataclass_and_other_keys_are_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "pet.json", weight=4, toys={"ball": [1, 2.5]}, later="version")
    assert read_as(Pet, path) == Pet("Tom", 4, 4.0, {"ball": [1.0, 2.5]})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": "pet/2"}, "has format 'pet/2', this antiphon reads 'pet/1'"),
        ({"format": ["x"]}, "has format"),
        ({"legs": None}, r"is damaged \(legs: expected a whole number, not null\)"),
        ({"legs": "4"}, r"\(legs: expected a whole number, not text\)"),
        ({"legs": 4.0}, r"\(legs: expected a whole number, not 4.0\)"),
        ({"legs": True}, r"\(legs: expected a whole number, not true or false\)"),
        ({"legs": -1}, r"\(legs: -1 is below 0\)"),
        ({"name": 5}, r"\(name: expected text, not 5\)"),
        ({"weight": [1]}, r"\(weight: expected a number, not a list\)"),
        ({"toys": []}, r"\(toys: expected an object, not a list\)"),
        ({"toys": {"ball": [1, "private"]}}, r"\(toys\.ball\[1\]: expected a number, not text\)"),
    ],
)
def test_a_damaged_file_is_named_with_its_key_and_what_to_do(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "pet.json", **fields)
    with pytest.raises(ValueError, match=rf"pet\.json .*{message}.*\. Adopt another"):
        read_as(Pet, path)


@pytest.mark.parametrize("key", ["name", "legs"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    path = write(tmp_path / "pet.json")
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != key}))
    with pytest.raises(ValueError, match=rf"pet\.json is damaged \({key}: it is missing\)\. Adopt another"):
        read_as(Pet, path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe{}", b'{"legs": 1e999}', b"[" * DEEP]
)
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pet.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"pet\.json"):
        read_object(tmp_path / "pet.json")


def test_a_missing_file_says_what_its_folder_should_hold(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{tmp_path.name} holds no pet \(cannot read pet\.json: No such"):
        read_as(Pet, tmp_path / "pet.json")


def test_a_damaged_line_is_named_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "pets.jsonl"
    path.write_bytes(b'{"name": "Tom", "legs": 4}\n{"name": "Kim", "legs": 4\n')
    lines = read_lines_as(Pet, path)
    assert next(lines) == Pet("Tom", 4)
    with pytest.raises(ValueError, match=r"pets\.jsonl:2 is not JSON"):
        next(lines)
    path.write_bytes(b'{"name": "K\xff"}\n')
    with pytest.raises(ValueError, match=r"pets\.jsonl:1 is not JSON"):
        list(read_lines_as(Pet, path))
    path.write_bytes(b'{"name": "Kim"}\n')
    with pytest.raises(ValueError, match=r"pets\.jsonl:1 is damaged \(legs: it is missing\)\. Adopt another"):
        list(read_lines_as(Pet, path))


def test_a_message_quotes_no_text_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "pet.json", legs="a secret sentence", name=["another secret"])
    with pytest.raises(ValueError, match="damaged") as raised:
        read_as(Pet, path)
    assert "secret" not in str(raised.value)


def test_files_and_lines_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("x" * 50 + "\n" + "y" * 200)
    with pytest.raises(ValueError, match=r"long\.txt has more than 100 bytes"):
        read_text(path, limit=100)
    with path.open() as file:
        lines = limited_lines(file, "long.txt", 100)
        assert next(lines) == "x" * 50 + "\n"
        with pytest.raises(ValueError, match=r"long\.txt has a line of more than 100"):
            next(lines)


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_a_damaged_file_of_tensors_is_named(tmp_path: Path, framework: str) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"b": torch.ones(3), "a": torch.zeros(2)}, path)
    assert read_tensors(path, framework=framework)["b"].tolist() == [1, 1, 1]
    whole = path.read_bytes()
    for content in (b"", whole[:20], whole[:-1], b"\xff" * 8 + whole[8:], whole.replace(b"F32", b"Q99")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"model\.safetensors is damaged .*\. Train it again"):
            read_tensors(path, "Train it again", framework)
    path.unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        read_tensors(path)
