"""Processes of a run: the worker, the warm process that forks workers, and the main of exported scripts."""
