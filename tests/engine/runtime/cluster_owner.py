"""A process that owns a small cluster, to be killed: ``[INTRA INTER]`` in bytes/s, else it is not shaped.

It prints ``PID NAMESPACE`` for each process of its cluster, then waits for them.
"""

from __future__ import annotations

import sys

from meshwave.engine.runtime.calibration import emulated_cluster as shaped

if __name__ == "__main__":
    cluster = shaped.Cluster(2, 2, *map(float, sys.argv[1:]))
    shaped.run("tests.engine.runtime.works:waits", cluster, say=lambda line: print(line, flush=True))
