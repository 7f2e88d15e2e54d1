"""What every other part builds on: shape annotations, caches of values computed from modules."""
