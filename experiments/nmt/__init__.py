"""Kobayashi et al. (2020), section 5: train a translation model, read word alignment off it."""
