"""README.md of a draft: what it was trained on and how, and how much of its guesses the target accepts."""

from __future__ import annotations

from typing import Any

from edgepipe.exporters.sources.weights import SourceInfo


def draft_card(facts: dict[str, Any], source: SourceInfo, config: dict[str, Any]) -> str:
    """The card, from the "edgepipe" of the draft's config.json; the lines between ``---`` are read by model hubs."""
    base_model = [f"base_model: {source.name}"] if source.revision else []
    acceptance, training = facts["acceptance"], facts["training"]
    greedy = acceptance["greedy"]
    layers = ", ".join(map(str, facts["layers"]))
    limit = f", within {training['minutes']:g} minutes" if training["minutes"] else ""
    start = facts.get("start")
    earlier = [] if start is None else [f"| goes on from | {_lineage(start)} |"]
    return "\n".join(
        [
            "---",
            f"license: {(source.licence or 'other').lower()}",
            "library_name: edgepipe",
            *base_model,
            "---",
            "",
            f"# A draft for {facts['target']}",
            "",
            f"It guesses what {source.name} says next, which accepts or corrects it: the text is that of the target,",
            "only faster. Written by `edgepipe distill`; to use it:",
            "",
            f"    edgepipe export --target {facts['target']} --draft . -o BUNDLE",
            "",
            "| | |",
            "|---|---|",
            f"| decoder layers | {config['num_hidden_layers']}, started from the target's layers {layers} |",
            f"| tokens that it can guess | {config['output_vocab_size']}, the target's most frequent; they are "
            f"{facts['output_vocab_coverage']:.1%} of what the target wrote to held-out prompts |",
            "| embeddings | the target's own, not stored here |",
            *earlier,
            f"| samples | {facts['sample_tokens']} tokens that the target wrote; prompts: {facts['prompts']}; "
            f"temperatures {', '.join(f'{each:g}' for each in facts['temperatures'])} |",
            f"| training | {facts['training_tokens']} tokens, {training['passes']:g} passes planned{limit}; "
            f"took {facts['training_minutes']:g} minutes |",
            f"| seed | {facts['seed']} |",
            f"| held-out greedy acceptance | {greedy:.3f}: {1 + greedy:.2f} tokens a round at gamma 1 |",
            f"| held-out acceptance at temperature 1 | at least {acceptance['sampled']:.3f} |",
            "",
            f"Acceptance is measured on {acceptance['held_out_tokens']} tokens that the target wrote, greedily, to",
            "prompts whose topics the training never met, with the weights as they are here.",
            "",
            "| training tokens | loss | greedy | temperature 1 |",
            "|---|---|---|---|",
            *(
                f"| {each['tokens']:.0f} | {each['loss']:.3f} | {each['greedy']:.3f} | {each['sampled']:.3f} |"
                for each in facts["evaluations"]
            ),
            "",
        ]
    )


def _lineage(start: dict[str, Any]) -> str:
    """The earlier draft, what it was trained on, and the one before it."""
    tokens = f"{start.get('training_tokens', '?')} tokens of {start.get('sample_tokens', '?')}"
    told = f"{start['name']}, trained on {tokens} that the target wrote, seed {start.get('seed', '?')}"
    return f"{told}; before from {_lineage(start['start'])}" if "start" in start else told
