"""Published speed and quality claims: what was said, what was left out, why that matters, and what runs say of it.

- document: YAML text to plain data with line numbers, nothing executed
- schema: what a claim file may say
- registry: a folder of claim files, the bad ones refused one by one
- questions: the four questions to ask of "N times faster"
- traps: the known ways in which a figure says more than was measured
- hardware: what devices and models are made of, from datasheets
- physics: the tokens per forward that a speed needs, modelled
- dossier: all of the above about one claim
- recipes: from a recipe to the stored runs that carry it out, and to the commands that would make them
- verdicts: what those runs say of the claim
- difference: two claims field by field
- template: the file to start a new claim from
"""
