"""Plan, predict and run distributed training. Nothing here draws."""

if __name__ != "meshwave.engine":  # a second copy of every module would be loaded from a checkout
    raise ImportError(f"import meshwave.engine, not {__name__}")
