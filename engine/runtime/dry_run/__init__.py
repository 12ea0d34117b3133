"""Dry runs: processes exchange real messages, and wait for the modelled time instead of computing."""
