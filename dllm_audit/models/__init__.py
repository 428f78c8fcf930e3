"""Checkpoints as transformers modules: family tables, loading, tokenizers, and the embedded models."""
