"""Word alignment: links between the words of two texts, by any encoder-decoder model.

A link is ``(source word, target word)``. Both are counted from 0, even if a file counts from 1.
"""
