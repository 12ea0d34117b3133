"""Execution of a program as training: stages, data, optimizer, and the loop over a rank's actions."""
