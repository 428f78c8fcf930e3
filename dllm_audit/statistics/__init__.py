"""Intervals, tests and power: pure functions of numbers, nothing stored and nothing printed.

- proportions: one rate: the Wilson interval
- paired: two decoders on the same documents: exact McNemar, the Tango interval, non-inferiority
- clustered: the same where each document was answered several times, over repeats or templates
- sequential: "faster and not worse" watched pair by pair, with always-valid inference
- throughput: ratios of sums over clusters: tokens per second, speed-up, contrasts of several sides
- factorial: two changes on and off: both effects and their interaction
- crossover: the concurrency at which the baseline overtakes, or none
- latency: percentiles with distribution-free intervals
- goodput: requests per second within a latency bound; correct answers per second
- iso_accuracy: latency at equal accuracy
- pareto: which runs another one beats in speed and quality
- aup: accuracy under parallelism
- multiple: many tests at once: Benjamini-Hochberg
- power: which margin so many documents can decide, and how many a margin needs
"""
