"""Base classes and files shared by all widgets."""
