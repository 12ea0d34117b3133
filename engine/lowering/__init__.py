"""Lowering: translation of a design to its program, one file per pass."""
