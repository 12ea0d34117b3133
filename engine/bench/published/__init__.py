"""Predictions held against published training runs: ``meshwave bench published``."""
