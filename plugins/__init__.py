"""The built-in decoder backends, one module each, registered by the same entry points as anybody's."""
