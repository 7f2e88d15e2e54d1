"""Text in: ids, pieces, words, special tokens; what a model can read."""
