"""Device of a process: accelerators of any kind, streams, clocks and memory."""
