"""Which input made this output: shares of a whole model's output, exact, signed and proved."""
