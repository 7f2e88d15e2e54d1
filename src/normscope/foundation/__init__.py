"""What every other part builds on: shape annotations."""
