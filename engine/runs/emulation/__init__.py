"""Emulated hosts: network namespaces on this machine, connected by links with the rates of a cluster."""
