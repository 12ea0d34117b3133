"""Environment variables that the processes of a run receive.

Only listed variables are passed on, because an environment may contain tokens and keys under any name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from meshwave.engine.files import import_path

SYSTEM = "PATH HOME USER TMPDIR LANG LC_ALL LC_CTYPE LD_LIBRARY_PATH XDG_DATA_HOME MESHWAVE_HOME"
CUDA = """
CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_HOME CUDA_PATH CUDA_CACHE_PATH CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING
CUDA_DEVICE_MAX_CONNECTIONS CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
"""
NCCL = """
NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_SOCKET_IFNAME NCCL_SOCKET_FAMILY NCCL_SOCKET_NTHREADS NCCL_NSOCKS_PERTHREAD
NCCL_IB_DISABLE NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_IB_TIMEOUT NCCL_IB_RETRY_CNT NCCL_IB_TC NCCL_IB_SL NCCL_NET
NCCL_NET_PLUGIN NCCL_NET_GDR_LEVEL NCCL_CROSS_NIC NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE NCCL_ALGO NCCL_PROTO
NCCL_NTHREADS NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MAX_CTAS NCCL_BUFFSIZE NCCL_P2P_NET_CHUNKSIZE
NCCL_CUMEM_ENABLE NCCL_NVLS_ENABLE NCCL_LAUNCH_MODE NCCL_TOPO_FILE NCCL_GRAPH_FILE NCCL_IGNORE_CPU_AFFINITY
NCCL_MULTI_RANK_GPU_ENABLE
"""
GLOO = "GLOO_SOCKET_IFNAME GLOO_DEVICE_TRANSPORT"
TORCH = """
TORCH_DISTRIBUTED_DEBUG TORCH_CPP_LOG_LEVEL TORCH_SHOW_CPP_STACKTRACES TORCH_LOGS TORCH_NCCL_HIGH_PRIORITY
TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_ENABLE_MONITORING TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC
TORCH_FR_BUFFER_SIZE TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_ALLOW_TF32_CUBLAS_OVERRIDE
PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_NVML_BASED_CUDA_CHECK
TRITON_CACHE_DIR TRITON_PTXAS_PATH
"""

PASSED_ON = frozenset(" ".join((SYSTEM, CUDA, NCCL, GLOO, TORCH)).split())
"""Names of all variables that are passed on; docs/reference/run-folder.md explains them."""


def process_environment(path: Path | None = None, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of the processes of a run: the listed variables of ``given``, and Meshwave's settings.

    The settings restrict each process to the loopback interface and to one thread. ``path`` is a folder to import from,
    in addition to Meshwave's.
    """
    passed = {name: value for name, value in given.items() if name in PASSED_ON}
    loopback = "lo" if sys.platform.startswith("linux") else "lo0"
    return {
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
        **passed,
        "OMP_NUM_THREADS": "1",  # the processes of a run share the cores
        "PYTHONPATH": import_path(*([path] if path else []), given=given),
        "PYTHONSAFEPATH": "1",  # do not import modules from the run folder
        "PYTHONUNBUFFERED": "1",  # unbuffered, because the log is read during the run
    }
