"""Workflows: what each command does, as a function that a Python program can call.

They take keyword arguments, return values and print nothing. `antiphon` exports all of them.
"""
