"""A module that prints its process as soon as it is imported, before the process joins a group."""

from __future__ import annotations

import os
import time
from typing import Any

from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster

print(os.getpid(), flush=True)


def wait(cluster: ProcessCluster, argument: Any) -> None:
    time.sleep(600)
