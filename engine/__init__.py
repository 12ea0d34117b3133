"""Engine: plan, predict and run distributed training. It contains no user interface."""

if __name__ != "meshwave.engine":  # a second copy of every module would be loaded from a checkout
    raise ImportError(f"import meshwave.engine, not {__name__}")
