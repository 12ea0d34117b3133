"""The page on which a design is drawn, predicted, launched and compared."""

if __name__ != "meshwave.designer":  # a second copy of every module would be loaded from a checkout
    raise ImportError(f"import meshwave.designer, not {__name__}")
