"""What `python -m legacyga` runs."""

import sys

from legacyga.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
