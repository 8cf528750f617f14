"""Workflows: what each command does, as a function that a Python program can call.

They return values and print nothing. `antiphon` exports all of them.
"""
