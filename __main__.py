"""`python -m unabridged`."""

import sys

from unabridged.cli import main

if __name__ == "__main__":
    sys.exit(main())
