"""The command line."""


def main() -> None:
    """Run the command `normscope`."""
    from normscope.cli.app import main

    main()
