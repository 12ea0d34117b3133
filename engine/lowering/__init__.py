"""Lowering: from a design to its program, one file per pass."""
