"""The engine: the loop that runs batches through a model, and the judge of exactness."""
