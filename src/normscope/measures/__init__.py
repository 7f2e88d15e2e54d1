"""What is measured of the layers of a model."""
