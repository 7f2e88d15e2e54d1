"""Labelled results: arrays, tokens, errors, signatures and files."""
