"""Measures of a model's layers: maps, statistics, weight properties."""
