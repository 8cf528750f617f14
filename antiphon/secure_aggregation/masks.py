"""Masks and fixed-point numbers of secure aggregation: vectors of the ring of integers modulo 2^32."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from antiphon.core import Tensors

LARGEST = 2**31 - 1  # the largest sum in the ring, as a signed number; also the largest weight


def public_key(key: X25519PrivateKey) -> str:
    """Return the public half of a key, in hexadecimal digits."""
    return key.public_key().public_bytes_raw().hex()


def derive_key(secret: bytes, *purpose: str) -> bytes:
    """Return 32 bytes for one purpose; bytes for different purposes are independent."""
    return HKDF(SHA256(), 32, None, json.dumps(purpose).encode()).derive(secret)


def agree(own: X25519PrivateKey, other: str, *purpose: str) -> bytes:
    """Return the key that only the two owners of these keys can compute."""
    shared = own.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(other)))
    return derive_key(shared, *purpose)


def _stream(key: bytes, size: int) -> np.ndarray:
    """Return `size` elements of the ring. Each key makes one stream only, so the nonce can be constant."""
    stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(4 * size))
    return np.frombuffer(stream, dtype="<u4")


def self_mask(seed: bytes, session: str, size: int) -> np.ndarray:
    """Return the mask PRG(b_u) of one client."""
    return _stream(derive_key(seed, "self mask", session), size)


def add_pair_mask(
    total: np.ndarray, key: X25519PrivateKey, own: str, peer: str, peer_key: str, session: str
) -> None:
    """Add to a client's vector the mask that it shares with a peer.

    One of the two adds PRG(s_uv) and the other one subtracts it, so that pairs cancel in a sum.
    """
    first, second = sorted((own, peer))
    mask = _stream(agree(key, peer_key, "pair mask", session, first, second), len(total))
    if own == first:
        np.add(total, mask, out=total)
    else:
        np.subtract(total, mask, out=total)


@dataclass(frozen=True)
class FixedPoint:
    """Weighted vectors as integers. No sum over the clients in `weights` leaves the ring.

    `bound` is the largest absolute value in an update. Σ_k |w_k x_k| · scale plus one step of rounding for
    each client is at most `LARGEST`.
    """

    bound: float
    weights: Mapping[str, int]

    @property
    def scale(self) -> float:
        """The number of steps of the ring for weight times value."""
        return (LARGEST - len(self.weights)) / (self.bound * sum(self.weights.values()))

    @property
    def step(self) -> float:
        """The distance of two neighbouring means over all clients in `weights`."""
        return 1 / (self.scale * sum(self.weights.values()))

    def encode(self, values: np.ndarray, client: str) -> np.ndarray:
        """Return a client's weighted values, rounded to the nearest step; refuse those out of range."""
        if not (np.abs(values) <= self.bound).all():
            raise ValueError(
                f"a value of the update is not finite or above {self.bound:g}: clip updates, or set a larger "
                "secure_aggregation.bound"
            )
        scaled = values * (self.weights[client] * self.scale)
        return np.floor(scaled + 0.5).astype(np.int64).astype(np.uint32)

    def decode(self, total: np.ndarray, clients: list[str]) -> np.ndarray:
        """Return the weighted mean over these clients from their sum in the ring."""
        mean: np.ndarray = total.view(np.int32) / (self.scale * sum(self.weights[c] for c in clients))
        return mean


@dataclass(frozen=True)
class WholeSteps:
    """Vectors in whole steps of a grid, all of one weight: updates with noise of their clients."""

    step: float

    def decode(self, total: np.ndarray, clients: list[str]) -> np.ndarray:
        """Return the mean over these clients from their sum in the ring."""
        mean: np.ndarray = total.view(np.int32) * (self.step / len(clients))
        return mean


def flatten(tensors: Tensors) -> np.ndarray:
    """Return all values as one vector of float64, in the order of names."""
    parts = [tensors[name].detach().cpu().double().numpy().ravel() for name in sorted(tensors)]
    return np.concatenate([np.empty(0), *parts])


def unflatten(values: np.ndarray, like: Tensors) -> Tensors:
    """Return tensors with the names, shapes and types of `like`; the inverse of `flatten`."""
    tensors, at = {}, 0
    for name in sorted(like):
        part = torch.from_numpy(values[at : at + like[name].numel()])
        tensors[name] = part.view(like[name].shape).to(like[name])
        at += like[name].numel()
    return {name: tensors[name] for name in like}


def layout_of(tensors: Tensors) -> list[list[object]]:
    """Return names, shapes and types of tensors, as JSON can hold them."""
    return [[name, list(tensors[name].shape), str(tensors[name].dtype)] for name in sorted(tensors)]
