"""From stored rows to figures with a status: one run, two runs paired by document, and which runs to pair.

- figures: a number that says how it came about, and why it is unknown where it is
- summary: everything about one run
- bounds: how close a run came to what its device allows, and whether algorithm or engine made the difference
- conventions: the same run under the counting habits of the field
- pairing: two runs on the same documents, what differs between them, and the verdict
- references: which run is the baseline of which
- plain: untrusted text made safe to look at
"""
