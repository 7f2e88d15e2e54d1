"""The papers' experiments, one package each."""
