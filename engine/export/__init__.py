"""A timeline or a program in the form of another tool, one file a form."""
