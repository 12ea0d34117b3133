"""Models of Hugging Face ``transformers``: configurations, tensor names and checkpoints.

This package imports neither torch nor transformers.
"""
