"""``python -m edgepipe`` is the `edgepipe` command."""

from edgepipe.pipeline.cli import main

if __name__ == "__main__":
    main()
