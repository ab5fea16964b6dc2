"""The `edgepipe` command; ``python -m edgepipe`` is the same.

It imports the command line inside `main`, so that a Ctrl-C during the imports ends as quietly as any later one.
"""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit."""
    try:
        from edgepipe.pipeline.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
