"""Execution of a program as training: stages, data, optimizer, and the executor of a rank's actions."""
