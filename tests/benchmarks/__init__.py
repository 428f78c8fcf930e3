"""Benchmarks: ratios measured side by side in one run, never judged by a test. `make bench` runs all of them.

Absolute times say something about the machine alone; what may be compared are the ratios within one run.
"""
