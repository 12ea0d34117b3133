"""Processes of a run: the worker, the warm process that forks workers, and the main function of exported scripts."""
