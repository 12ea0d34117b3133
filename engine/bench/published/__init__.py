"""Comparison of predictions with published training runs: ``meshwave bench published``."""
