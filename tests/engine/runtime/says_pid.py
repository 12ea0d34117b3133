"""Work that says where it is as soon as it is looked for, long before a group could be joined."""

from __future__ import annotations

import os
import time
from typing import Any

from meshwave.engine.runtime.calibration.emulated_cluster import Cluster

print(os.getpid(), flush=True)


def work(cluster: Cluster, argument: Any) -> None:
    time.sleep(600)
