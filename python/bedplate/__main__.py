"""``python -m bedplate`` is the command ``bedplate``."""

import sys

from bedplate.cli import main

if __name__ == "__main__":
    sys.exit(main())
