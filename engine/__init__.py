"""Plan, predict and run distributed training. Nothing here draws."""

__version__ = "0.1.0"
