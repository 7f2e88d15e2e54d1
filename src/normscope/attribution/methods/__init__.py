"""The methods of attribution: one small class for each in a file of its own, and one table."""
