"""Batches through a model: the one loop and the one judge of exactness."""
