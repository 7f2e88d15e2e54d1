"""Text in: tokens, words, and what a model can read."""
