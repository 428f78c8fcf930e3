"""The embedded lm-eval tasks: YAML files, the data they read, and what makes that data."""
