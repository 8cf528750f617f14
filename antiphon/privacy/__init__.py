"""Differential privacy for pooled counts: caps, noise, a ledger. docs/privacy.md describes the guarantees."""
