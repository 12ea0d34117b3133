"""Properties of this machine that its tools report."""

from __future__ import annotations

import pytest

from meshwave.engine.machine import GpuTopology, parse_gpu_topology

HEADER = "\x1b[4m\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
LEGEND = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"


@pytest.mark.parametrize(
    ("matrix", "topology"),
    [
        (
            f"{HEADER}GPU0\t X \tNV18\tPIX\tSYS\tNODE\t0-23\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\tPXB\tSYS\t24-47\t1\t\tN/A\n"
            f"NIC0\tPIX\tSYS\t X \tSYS\tNODE\n{LEGEND}",
            GpuTopology("NV18", 2),
        ),
        (
            f"{HEADER}GPU0\t X \tPHB\tNODE\tSYS\tNODE\t0-23\t0\t\tN/A\nGPU1\tPHB\t X \tSYS\tNODE\tSYS\t24-47\t1\t\tN/A\n",
            GpuTopology("PHB", 3),
        ),
        ("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-15\t0\n", GpuTopology()),
        ("", GpuTopology()),
    ],
    ids=["NVLink, two NICs near GPUs", "PCIe, no NIC near a GPU", "one GPU", "no output"],
)
def test_the_links_of_gpus_are_read_from_the_matrix_of_nvidia_smi(matrix: str, topology: GpuTopology) -> None:
    assert parse_gpu_topology(matrix) == topology
