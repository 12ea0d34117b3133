"""Emulated hosts: network namespaces on this machine, with links as slow as those of a cluster."""
