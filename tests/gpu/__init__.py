"""Everything that only a GPU can tell, in one command: `make gpu`, or `python -m tests.gpu`.

Within ten minutes on one machine it checks that decoding on CUDA gives the recorded tokens, alone and in a batch, under every
engine, that its clocks and books hold, and measures how close forwards come to what the device allows, what half
precision changes, what batches gain, the baseline beside transformers, memory and energy, and a whole `run` and
`report`. Every step is a process of its own with a limit on its time, so that one that fails or hangs costs no other; every
result is printed and kept in one JSON file as soon as it is there.

`python -m tests.gpu --device cpu` does the same on tiny models without a GPU: it shows that the steps work, and its times
mean nothing. Steps that need CUDA say so.
"""
