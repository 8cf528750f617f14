"""Differential privacy for pooled counts: caps, noise, a ledger. docs/privacy.md says what is claimed."""
