"""Encoding of text: ids, pieces, words, special tokens; the input limits of a model."""
