"""Widgets on which a design is drawn; each file is the Python side of a module in ``static/``."""
