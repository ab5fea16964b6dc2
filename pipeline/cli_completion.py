"""`edgepipe completion SHELL`: the script that completes verbs and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash   eval "$(edgepipe completion bash)"          in ~/.bashrc
    zsh    eval "$(edgepipe completion zsh)"           in ~/.zshrc
    fish   edgepipe completion fish > ~/.config/fish/completions/edgepipe.fish
    """
    from edgepipe.pipeline.cli import cli

    completion = get_completion_class(shell)
    assert completion is not None, f"click knows no shell {shell}"
    click.echo(completion(cli, {}, "edgepipe", "_EDGEPIPE_COMPLETE").source())
