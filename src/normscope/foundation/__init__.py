"""What every other part builds on: shape annotations, files, hashes and ranks."""
