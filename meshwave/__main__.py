"""Run the command ``meshwave``, also as ``python -m meshwave``."""

import signal
import sys


def main() -> int:
    """Run the command line and return its exit status; Ctrl-C ends it without a traceback even during the imports."""
    try:
        from meshwave.designer.main import main as run_command

        return run_command()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
