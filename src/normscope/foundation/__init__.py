"""What every other part builds on: shape annotations, files, hashes, ranks and caches."""
