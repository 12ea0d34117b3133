"""Predictions of designs, questions about them, and comparisons between variants."""
