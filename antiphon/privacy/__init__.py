"""Differential privacy for word counts and model updates: limits, noise, ledgers (docs/privacy.md)."""
