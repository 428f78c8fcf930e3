"""What each section of the report shows: one module each, with its dataclasses and the function that makes them.

Templates only lay it out. Everything that came from a run or a claim is hostile text: it stays text here and is escaped
by the templates.
"""
