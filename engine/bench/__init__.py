"""Benchmarks and the tables of papers: ``meshwave bench``."""
