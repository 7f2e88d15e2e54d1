"""Run the command line: `python -m normscope`."""

from __future__ import annotations

from normscope.cli.app import main

if __name__ == "__main__":
    main()
