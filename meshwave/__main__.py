"""Run the command ``meshwave`` as ``python -m meshwave``."""

import sys

from meshwave.designer.main import main

if __name__ == "__main__":
    sys.exit(main())
