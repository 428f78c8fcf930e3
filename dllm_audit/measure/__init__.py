"""Clocks, the environment, and the check that count times cost explains the wall time."""
