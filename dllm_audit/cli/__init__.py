"""The command line: one thin file per command. Results go to stdout, progress and notes to stderr."""
