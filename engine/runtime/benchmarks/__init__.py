"""Parts of benchmarks that need torch, run by :mod:`meshwave.engine.bench` in processes of their own."""
