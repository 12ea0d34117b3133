"""Messages of ``meshwave doctor``: requirements that a machine meets, and how to get missing ones."""

from __future__ import annotations

from collections.abc import Sequence

from meshwave.engine.messages import Message


def _gpu_counts(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _torch_version(version: str, cuda: str | None) -> str:
    return f"{version}, {f'built for CUDA {cuda}' if cuda else 'without CUDA'}"


MESSAGES: dict[str, Message] = {
    "check_failed": "the check failed: {error}",
    # Python and libraries
    "python_version": "{implementation} {version} on {platform}",
    "newer_python_remedy": "install Python {oldest} or newer",
    "package_version": "{version}",
    "package_missing": "not installed; {needed_by} needs it",
    "package_remedy": "pip install {package}",
    "numba_missing": "not installed; large designs whose messages share links are simulated ten times slower",
    # torch
    "torch_missing": "not installed; runs need it",
    "torch_remedy": "pip install torch; planning and predicting work without it",
    "torch_broken": "{version}, which does not work: {reason}",
    "torch_reinstall_remedy": "reinstall torch",
    "torch_version": _torch_version,
    "gpus": _gpu_counts,
    "no_gpus": "no GPU that torch can use; runs use the CPU",
    "gpus_without_torch_build": "a GPU driver is installed, but this torch cannot use it; runs use the CPU",
    "torch_build_remedy": (
        "install a build of torch for the CUDA version of the driver: https://pytorch.org/get-started/locally"
    ),
    "gloo_available": "available (used on CPUs and when processes share a GPU)",
    "gloo_missing": "not included in this build of torch; runs on CPUs need it",
    "gloo_remedy": "install an official build of torch",
    "nccl_version": "{version}",
    "nccl_without_gpu": "available, but there is no GPU to use it on",
    "nccl_missing": "not included in this build of torch; GPUs communicate over gloo, which is slow",
    "nccl_remedy": "install a CUDA build of torch",
    "driver_gpu": "GPU {index}: {description}",
    "driver_broken": "nvidia-smi fails: {reason}",
    # hardware and system
    "cores": "{cores}; with more processes than cores, processes are time-sliced, which distorts measured timelines",
    "memory_size": "{bytes:quantity|B}",
    "fork_available": "runs start from a warm process, in a fraction of a second",
    "fork_unsafe": (
        "forking from a process with torch loaded is not safe on this system, so each process imports torch itself, which "
        "takes seconds"
    ),
    "orphans_killed": "child processes are killed if the launcher dies",
    "orphans_by_pipe": "no parent-death signal on this system; a run ends when the pipe to its launcher closes",
    "loopback_works": "127.0.0.1 is reachable",
    "loopback_broken": "127.0.0.1 does not answer: {error}",
    "loopback_remedy": "allow loopback connections; the designer and gloo need them",
    "links_emulated": "can be emulated: run --hosts, calibrate --shaped and bench moe emulate nodes on this machine",
    "links_not_emulated": (
        "cannot be emulated: `meshwave run --hosts` is not available, `calibrate` measures the loopback, and `bench` skips its moe part"
    ),
    "links_remedy": "{reason}",
    "folder_writable": "{folder}, {free_bytes:quantity|B} free",
    "folder_unwritable": "{folder} cannot be written: {error}",
    "folder_remedy": "set $MESHWAVE_HOME to a folder that can be written",
    "disk_full_remedy": "free some disk space",
    "chromium_version": "{version}, {path}",
    "chromium_missing": "not found",
    "chromium_remedy": (
        "only the browser tests need it: install it (Debian, Ubuntu: apt-get install chromium; Fedora: dnf install "
        "chromium; macOS: brew install --cask google-chrome; anywhere: playwright install chromium) or set CHROME_BIN "
        "to the path of a Chrome"
    ),
}
