"""The papers' mathematics: exact, factored decompositions that report their own error."""
