"""A model as a linear map: its operations replaced by rules, at the values of one forward pass."""
