"""Word alignment: links between the words of two texts, from any encoder-decoder model.

A link is ``(source word, target word)``, both counted from 0, whatever a file counts from.
"""
