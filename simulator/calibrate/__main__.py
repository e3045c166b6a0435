"""`python -m simulator.calibrate`: the verb `calibrate` by itself."""

from __future__ import annotations

import sys

from simulator.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["calibrate", *sys.argv[1:]]))
