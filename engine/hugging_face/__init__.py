"""Models of Hugging Face ``transformers``: their configurations, the names of their weights, and their checkpoints.

Nothing here imports torch or transformers.
"""
