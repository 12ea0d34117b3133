"""A replacement for kubectl that runs the pods of a job as local processes: ``kubectl_stand_in.py STATE ...``.

It behaves as documented for kubectl and the controllers of TrainJob and JobSet, and records its arguments.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RUN_POD = 'status=0; "$@" || status=$?; echo $status > "$STATUS"'


def main(state: Path, arguments: list[str]) -> None:
    with (state / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    words = [word for word in arguments if not word.startswith("--")]
    {"create": create, "get": get, "delete": delete}[words[0]](state, words)


def create(state: Path, words: list[str]) -> None:
    import yaml  # takes longer than the other commands

    [document] = yaml.safe_load_all(Path(words[1]).read_text())
    name = document["metadata"]["name"]
    job = state / name
    job.mkdir()
    spec = document["spec"]
    if document["kind"] == "TrainJob":
        nodes, command = spec["trainer"]["numNodes"], spec["trainer"]["command"]
    else:
        template = spec["replicatedJobs"][0]["template"]["spec"]
        nodes, command = template["completions"], template["template"]["spec"]["containers"][0]["command"]
        head = f"{name}-node-0-0.{name}"  # the cluster's DNS resolves it
        command = [word.replace(head, "127.0.0.1") for word in command]
    port = 20_000 + int(time.time() * 10) % 10_000
    for node in range(nodes):
        pet = {"PET_NODE_RANK": str(node), "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port)}
        variables = {**pet, "JOB_COMPLETION_INDEX": str(node), "STATUS": str(job / f"{node}.status")}
        with (job / f"{node}.log").open("wb") as log:
            pod = subprocess.Popen(
                ["bash", "-c", RUN_POD, "pod", *command],
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (job / f"{node}.pid").write_text(str(pod.pid))
    print(f"{document['kind'].lower()}/{name} created")


def get(state: Path, words: list[str]) -> None:
    job = state / words[2]
    if not job.exists():
        return
    nodes, ended = len([*job.glob("*.pid")]), [path.read_text().strip() for path in job.glob("*.status")]
    status: dict[str, Any] = {"jobsStatus": [{"name": "node", "ready": 1, "active": 1}]}
    if len(ended) == nodes:
        is_good = set(ended) == {"0"}
        condition = {
            "type": "Complete" if is_good else "Failed",
            "status": "True",
            "reason": "JobsDone",
            "message": "pods ended",
        }
        status = {"conditions": [condition]}
    print(json.dumps({"metadata": {"name": words[2]}, "status": status}))


def delete(state: Path, words: list[str]) -> None:
    job = state / words[2]
    for path in job.glob("*.pid"):
        try:
            os.killpg(int(path.read_text()), signal.SIGTERM)
        except ProcessLookupError:
            continue
    job.rename(state / f"{words[2]}.deleted")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
