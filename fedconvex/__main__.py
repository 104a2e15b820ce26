"""``fedconvex`` and ``python -m fedconvex``."""


def main() -> int:
    """Run a command; Ctrl-C while it is still being loaded, or a second one, ends it with status 130, too."""
    try:
        from fedconvex.cli import main as command

        return command()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
