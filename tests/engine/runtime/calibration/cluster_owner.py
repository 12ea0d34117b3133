"""A process that owns a small cluster and is killed by a test.

Arguments: ``[INTRA INTER]``, the bandwidths of emulated links in bytes/s.

It prints ``PID NAMESPACE`` for each process of its cluster, then waits for them.
"""

from __future__ import annotations

import sys

from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster, run_in_cluster

if __name__ == "__main__":
    cluster = ProcessCluster(2, 2, *map(float, sys.argv[1:]))
    function = "tests.engine.runtime.calibration.cluster_functions:print_pid_and_wait"
    run_in_cluster(function, cluster, on_line=lambda line: print(line, flush=True))
