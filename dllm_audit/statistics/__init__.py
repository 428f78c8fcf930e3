"""Intervals, paired tests and power: pure functions of numbers, nothing stored and nothing printed.

- proportions: one rate: the Wilson interval
- paired: two decoders on the same documents: exact McNemar, the Tango interval, non-inferiority
- throughput: ratios of sums over clusters: tokens per second, and speed-up
- latency: percentiles with distribution-free intervals
- multiple: many tests at once: Benjamini-Hochberg
- power: which margin so many documents can decide, and how many a margin needs
"""
