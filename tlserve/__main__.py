"""`python -m tlserve` is `tlserve`."""

import sys

from tlserve.cli import main

if __name__ == "__main__":
    sys.exit(main())
