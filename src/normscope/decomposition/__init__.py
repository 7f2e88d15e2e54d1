"""The papers' mathematics: exact, factored decompositions that know their own error."""
