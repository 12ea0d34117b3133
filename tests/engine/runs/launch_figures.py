"""Run ``meshwave bench launch`` on a real Slurm and a real sshd on this machine.

Arguments: KILLS FILE [TARGET ...]. Each killed run is a line of FILE; the next call continues after the last line.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from meshwave.engine.cli import main as cli
from meshwave.engine.files import import_folder
from tests.engine.runs import slurm_cluster, ssh_server

TARGETS = """
[slurm-pair]
launcher = "slurm"
interface = "{interface}"

[ssh-pair]
launcher = "ssh"
hosts = ["one", "two"]
address = "{address}"
interface = "{interface}"
shared = true
root = "{root}"
python = "{python}"
setup = ["export PYTHONPATH={path}"]
ssh_options = ["-F", "{ssh}"]
"""


def main(kills: str, file: str, *targets: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("slurm", "sshd", "remote"):
            (folder / part).mkdir()
        with slurm_cluster.running(folder / "slurm") as cluster, ssh_server.running(folder / "sshd") as server:
            given = {"interface": slurm_cluster.INTERFACE, "root": folder / "remote", "python": sys.executable}
            given["address"] = server.address
            text = TARGETS.format(**given, path=import_folder(), ssh=server.options[1])
            (folder / "targets.toml").write_text(text)
            home = {"MESHWAVE_HOME": str(folder / "home"), "MESHWAVE_TARGETS": str(folder / "targets.toml")}
            os.environ.update(cluster.variables | home)
            for target in targets or ("local", "slurm-pair", "ssh-pair"):
                print(f"## {target}", flush=True)
                cli.main(["bench", "launch", "--on", target, "--kills", kills, "--out", file])
                sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
