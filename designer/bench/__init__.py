"""Benchmarks of the page and of many open sessions."""
