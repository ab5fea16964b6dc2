"""How many tokens a round brings: a bundle with a draft answers the held-out prompts of `edgepipe distill`, greedily.

    python benchmarks/draft_acceptance.py BUNDLE [--prompts 40] [--tokens 128] [--gamma 1 --gamma 4]

Counted by the speculative decoder itself, over the exported graphs. Needs the extra ``export``.
"""

from __future__ import annotations

from pathlib import Path

import click

from edgepipe.exporters.llm.distill.prompt_sources import ChatTurns, TemplatePrompts
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.decode_options import DecodeOptions
from edgepipe.pipeline.session import Session
from edgepipe.runtimes.llm.rounds import Round


def rounds_of(session: Session, prompt: list[int], tokens: int) -> list[Round]:
    """The rounds after the prompt's of one answer."""
    decoder = session.decoder(len(prompt) + tokens)
    written = len(decoder.start(prompt).tokens)
    rounds: list[Round] = []
    while written < tokens:
        rounds.append(decoder.step(tokens - written))
        written += len(rounds[-1].tokens)
        if rounds[-1].tokens[-1] in session.spec.eos_token_ids:
            break
    return rounds


@click.command(help=__doc__)
@click.argument("bundle", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--prompts", default=40, show_default=True)
@click.option("--tokens", default=128, show_default=True, help="Longest answer.")
@click.option("--gamma", "gammas", type=int, multiple=True, default=(1, 4), show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the prompts.")
def main(bundle: Path, prompts: int, tokens: int, gammas: tuple[int, ...], seed: int) -> None:
    print("| gamma | rounds | tokens a round | accepted of checked guesses | first guess accepted |")
    print("|---|---|---|---|---|")
    for gamma in gammas:
        session = Session(Bundle.open(bundle), DecodeOptions(drafter="model", gamma=gamma, threads=1))
        chat = ChatTurns(session.tokenizer, session.template, session.spec.eos_token_ids)
        source = TemplatePrompts(chat, seed)
        rounds: list[Round] = []
        for index in range(prompts):
            rounds += rounds_of(session, source.turns(index, held_out=True)[0], tokens)
        drafted = [each for each in rounds if each.drafted]
        accepted = sum(each.accepted for each in drafted)
        checked = sum(each.drafted for each in drafted)
        first = sum(each.accepted > 0 for each in drafted)
        made = sum(len(each.tokens) for each in rounds)
        print(
            f"| {gamma} | {len(rounds)} | {made / len(rounds):.2f} | {accepted / checked:.3f} | "
            f"{first / len(drafted):.3f} |"
        )


if __name__ == "__main__":
    main()
