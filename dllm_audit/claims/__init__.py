"""Published speed and quality claims: what was said, what was left out, and why that matters.

- document: YAML text to plain data with line numbers, nothing executed
- schema: what a claim file may say
- registry: a folder of claim files, the bad ones refused one by one
- questions: the four questions to ask of "N times faster"
- traps: the known ways in which a figure says more than was measured
"""
