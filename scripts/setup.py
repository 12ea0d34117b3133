"""Prepare ``.venv`` for ``make run``, ``make docs`` or ``make test``; return at once if it is up to date.

The script needs only Python. An installed torch is used as it is and made visible in ``.venv``. Otherwise a machine
with an NVIDIA GPU gets the default build, and any other machine the CPU build, both in the version of
``constraints.txt``.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 9)
CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# pinned for the torch of constraints.txt only: an installed torch may need other versions
TORCH_BRINGS = {"torch", "filelock", "fsspec", "mpmath", "networkx", "setuptools", "sympy"}

EXTRAS = {"run": "", "docs": "[docs]", "test": "[docs,test]", "nightly": "[docs,test,nightly]"}
"""Optional dependencies of each goal; a goal includes those of the previous goals."""

# executed by another interpreter: reports whether it can create a venv, and its torch
ABOUT = """
import importlib.util, json, sys, sysconfig
from importlib import metadata
has = lambda name: importlib.util.find_spec(name) is not None
torch = importlib.util.find_spec("torch")
print(json.dumps({
    "version": sys.version_info[:3],
    "venv": has("venv") and has("ensurepip"),
    "inside_venv": sys.prefix != sys.base_prefix,
    "torch": metadata.version("torch") if torch else None,
    "torch_folder": torch.submodule_search_locations[0] if torch else None,
}))
"""


def main(goal: str) -> None:
    """Install the requirements of ``goal``, which is a key of ``EXTRAS``."""
    if not is_done(goal):
        base, about = find_python()
        make_venv(base, about)
        install_torch()
        install_meshwave(goal)
        for reached in list(EXTRAS)[: list(EXTRAS).index(goal) + 1]:
            stamp_file(reached).write_text(requirements_hash(), encoding="utf-8")
    if goal == "test":
        if not find_chromium():
            install_chromium()
        if missing_test_programs():
            install_test_programs()
    if goal == "nightly":
        if not (shutil.which("firefox-esr") or shutil.which("firefox")):
            install_browser("Firefox", ["firefox-esr"])
        if not (shutil.which("WebKitWebDriver") and shutil.which("Xvfb")):
            install_browser("WebKitGTK", ["webkit2gtk-driver", "xvfb"])


def is_done(goal: str) -> bool:
    """Return True if an earlier call installed the same requirements in the same folder."""
    return PYTHON.exists() and stamp_file(goal).exists() and stamp_file(goal).read_text("utf-8") == requirements_hash()


def stamp_file(goal: str) -> Path:
    """Return the path of the file that records the installed requirements of ``goal``."""
    return VENV / f".ready-to-{goal}"


def requirements_hash() -> str:
    """Return a hash of the requirements, and of the folder, since scripts in ``.venv`` contain its path."""
    inputs = [ROOT / "pyproject.toml", ROOT / "constraints.txt", Path(__file__)]
    return hashlib.sha256(b"\0".join([str(ROOT).encode(), *(path.read_bytes() for path in inputs)])).hexdigest()


def find_python() -> tuple[str, dict]:
    """Return this interpreter if it is new enough, else the oldest suitable one on the PATH, which has most wheels."""
    newer = [shutil.which(f"python3.{minor}") for minor in range(OLDEST_PYTHON[1], 20)]
    for path in filter(None, [sys.executable, *newer]):
        about = describe_interpreter(path)
        if about and tuple(about["version"]) >= OLDEST_PYTHON:
            return path, about
    oldest = ".".join(map(str, OLDEST_PYTHON))
    here = platform.python_version()
    sys.exit(f"Meshwave needs Python {oldest} or newer; this one is {here}. Install one, or: make PYTHON=/path/to/it")


def describe_interpreter(python: str | Path) -> dict | None:
    """Return the output of ``ABOUT`` in an interpreter; None if the interpreter does not start."""
    try:
        done = subprocess.run([str(python), "-c", ABOUT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        return json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def make_venv(base: str, about: dict) -> None:
    """Create ``.venv`` with ``base`` unless a working one exists; keep the torch of ``base`` visible."""
    there = describe_interpreter(PYTHON)
    if there and tuple(there["version"]) >= OLDEST_PYTHON:
        return
    if not about["venv"]:
        minor = ".".join(map(str, about["version"][:2]))
        sys.exit(f"{base} cannot make virtual environments. On Debian or Ubuntu: apt-get install python{minor}-venv")
    say(f"making {VENV.name} with {base}")
    keeps_torch = is_torch_supported(about["torch"])
    if about["torch"]:
        say(
            f"torch {about['torch']} is installed already " + ("and kept" if keeps_torch else "but too old; left alone")
        )
    see_through = ["--system-site-packages"] if keeps_torch and not about["inside_venv"] else []
    run([base, "-m", "venv", "--clear", *see_through, VENV])
    if keeps_torch and about["inside_venv"]:  # a venv of a venv does not see its packages, so add their folder
        packages = Path(about["torch_folder"]).parent
        site = command_output([PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        (Path(site) / "kept_torch.pth").write_text(f"{packages}\n", encoding="utf-8")


def is_torch_supported(torch: str | None) -> bool:
    """Return True if Meshwave supports a torch version such as ``2.13.0+cu130``."""
    return torch is not None and tuple(int(part) for part in torch.split(".")[:2]) >= OLDEST_TORCH


def install_torch() -> None:
    """Install the pinned torch, unless ``.venv`` already has torch."""
    if is_torch_supported((describe_interpreter(PYTHON) or {}).get("torch")):
        return
    pinned = next(line for line in constraints() if line.startswith("torch=="))
    if sys.platform.startswith("linux") and not has_nvidia_gpu():
        say(f"no NVIDIA GPU: trying the CPU build of {pinned} from pytorch.org")
        quick = ["--index-url", CPU_TORCH_INDEX, "--timeout", "8", "--retries", "0"]
        if pip("install", "--no-deps", *quick, pinned, check=False) == 0:
            return
        say("pytorch.org cannot be reached from here; the build depends on the index that pip is configured to use")
    say(f"installing {pinned}")
    pip("install", pinned)


def has_nvidia_gpu() -> bool:
    """Return True if the driver reports an NVIDIA GPU; torch may not be installed yet."""
    if Path("/dev/nvidia0").exists():
        return True
    return bool(shutil.which("nvidia-smi")) and run(["nvidia-smi", "-L"], check=False) == 0


def install_meshwave(goal: str) -> None:
    """Install this checkout in editable mode, with pinned versions of its requirements."""
    torch = (describe_interpreter(PYTHON) or {}).get("torch") or ""
    is_pinned = f"torch=={torch.split('+')[0]}" in constraints()
    pins = VENV / "constraints.txt"
    kept = [line for line in constraints() if is_pinned or line.split("==")[0] not in TORCH_BRINGS]
    pins.write_text("\n".join(kept) + "\n", encoding="utf-8")
    say("installing Meshwave and what it needs, which takes a minute")
    pip("install", "--quiet", "--constraint", pins, "--editable", f"{ROOT}{EXTRAS[goal]}")
    say("compiling the simulation of shared links, which takes some seconds once")
    run([PYTHON, "-m", "meshwave.engine.program.shared_links_simulation"], check=False)


def constraints() -> list[str]:
    """Return the pinned requirements, such as ``name==version``."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def find_chromium() -> str:
    """Return the path of a browser for the tests; empty if there is none."""
    return command_output(
        [PYTHON, "-c", "from meshwave.engine.cli.doctor import find_chromium; print(find_chromium() or '')"]
    )


def install_chromium() -> None:
    """Install Chromium by the methods available on this system; if all fail, print instructions."""
    for commands in chromium_install_commands():
        say("installing a Chromium for the browser tests: " + " && ".join(" ".join(map(str, c)) for c in commands))
        for command in commands:
            subprocess.run(list(map(str, command)), cwd=ROOT, check=False)
        if find_chromium():
            return
    remedy = command_output(
        [PYTHON, "-c", "from meshwave.engine.cli.doctor import CHROMIUM_REMEDY; print(CHROMIUM_REMEDY)"]
    )
    say(f"there is no Chromium and none could be installed, so the browser tests will fail. What to do: {remedy}")


def install_browser(name: str, packages: list[str]) -> None:
    """Install a browser with apt, some 100 MB; on other systems, print that its test is skipped."""
    apt = apt_get()
    if apt:
        say(f"installing {name} for its test")
        run([*apt, "update"], check=False)
        run([*apt, "install", "--yes", "--no-install-recommends", *packages], check=False)
    else:
        say(f"{name} is not installed, so its test is skipped")


def sudo() -> list[str] | None:
    """Return the command prefix for root rights: empty for root, None if they are not available."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return []
    may = shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], check=False).returncode == 0
    return ["sudo", "-n"] if may else None


def apt_get() -> list[str]:
    """Return the apt-get command with root rights; empty if it is not available."""
    before = sudo()
    if before is None or not shutil.which("apt-get"):
        return []
    return [*before, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]


def chromium_install_commands() -> list[list[list]]:
    """Return the commands to try in order: the packages of the system, then the download of Playwright."""
    before, apt, ways = sudo(), apt_get(), []
    if apt:
        packages = ["chromium", "fonts-liberation"]
        ways.append([[*apt, "update"], [*apt, "install", "--yes", "--no-install-recommends", *packages]])
    elif before is not None and shutil.which("dnf"):
        ways.append([[*before, "dnf", "install", "--assumeyes", "chromium"]])
    elif before is not None and shutil.which("pacman"):
        ways.append([[*before, "pacman", "-S", "--noconfirm", "chromium"]])
    elif shutil.which("brew"):
        ways.append([["brew", "install", "--cask", "google-chrome"]])
    with_deps = ["--with-deps"] if apt else []
    return [*ways, [[PYTHON, "-m", "playwright", "install", *with_deps, "chromium"]]]


TEST_PROGRAMS = {
    "slurmctld": "slurm-wlm",
    "munged": "munge",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",  # used by mariadb-install-db
    "sshd": "openssh-server",
    "rsync": "rsync",
    "nginx": "nginx-light",
    "chromium-headless-shell": "chromium-headless-shell",  # opens a page in two thirds of the processor time
}
"""Programs with which tests start a small cluster, a reverse proxy and a browser, with their Debian and Ubuntu packages."""


def missing_test_programs() -> list[str]:
    """Return the programs in ``TEST_PROGRAMS`` that are not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return [name for name in TEST_PROGRAMS if shutil.which(name, path=path) is None]


def install_test_programs() -> None:
    """Install the missing programs with apt, and print which are still missing and what that means for the tests."""
    apt = apt_get()
    if apt:
        packages = [TEST_PROGRAMS[name] for name in missing_test_programs()]
        say(f"installing {', '.join(packages)} for the tests")
        run([*apt, "update"], check=False)
        install = [*apt, "install", "--yes", "--no-install-recommends"]
        if run([*install, *packages], check=False) != 0:  # a system may lack one of them, and then apt installs none
            for package in packages:
                run([*install, package], check=False)
    if missing := missing_test_programs():
        what = "tests that need them are skipped, and without chromium-headless-shell those of the page take longer"
        say(f"not installed: {', '.join(missing)}; {what}")


def pip(*arguments: object, check: bool = True) -> int:
    """Run pip in ``.venv``."""
    return run([PYTHON, "-m", "pip", "--disable-pip-version-check", *arguments], check=check)


def run(command: list, check: bool = True) -> int:
    """Run a command and return its exit status; exit on failure, unless ``check`` is False."""
    status = subprocess.run(list(map(str, command)), cwd=ROOT, check=False).returncode
    if status and check:
        sys.exit(f"set-up stopped: this failed with status {status}: {' '.join(map(str, command))}")
    return status


def command_output(command: list) -> str:
    """Return the output of a command; empty if it fails."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, check=False)
    return done.stdout.decode().strip() if done.returncode == 0 else ""


def say(message: str) -> None:
    """Print a progress message."""
    print(f"meshwave set-up: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in EXTRAS:
        sys.exit(f"usage: python3 scripts/setup.py {'|'.join(EXTRAS)}")
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit("\nset-up stopped; the next call continues from here")
