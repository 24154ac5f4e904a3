"""The model card: a README.md beside the model's files, in the form that model hubs show."""

import yaml

from trainer.report.account import Account, Block, Section
from trainer.report.card_metadata import describe_metadata
from trainer.report.particulars import environment_pairs
from trainer.report.tables import Pairs, markdown_pairs, markdown_table, markdown_text
from trainer.runs.facts import RunFacts


def make_card(facts: RunFacts, account: Account) -> str:
    """The card as markdown with YAML front matter; the same text for the same run."""
    sections = [
        ("Use", [f"```python\n{account.card.use}\n```"]),
        ("Training data", _show(account.data)),
        ("Results", [markdown_text(account.verdict), markdown_text(account.evaluated)]),
        *((section.title, _show(section)) for section in account.results),
        ("Model", [markdown_pairs("Model", account.model)]),
        ("Training settings", [markdown_pairs("Setting", _settings(facts))]),
        ("Versions", [markdown_pairs("What", environment_pairs(facts))]),
    ]
    matter, missing = describe_metadata(facts, account)
    front = yaml.safe_dump(matter, sort_keys=False, allow_unicode=True)
    text = [f"---\n{front}---", f"# {markdown_text(facts.name)}", _what_it_is(facts, account)]
    if missing:
        text.append(f"Not said above: {markdown_text('; '.join(missing))}.")
    for title, paragraphs in sections:
        text += [f"## {markdown_text(title)}", *paragraphs]
    return "\n\n".join(text) + "\n"


def _what_it_is(facts: RunFacts, account: Account) -> str:
    return (
        f"{markdown_text(account.card.summary)} with headrace {facts.final.headrace}. Its run has the fingerprint "
        f"`{facts.config['fingerprint']}`; `lineage.json` beside the run's report names every artifact behind it."
    )


def _show(section: Section) -> list[str]:
    return [paragraph for block in section.blocks for paragraph in _paragraphs(block)]


def _paragraphs(block: Block) -> list[str]:
    note = [markdown_text(block.note)] if block.note else []
    table = [markdown_table(block.table)] if block.table else []
    return [*note, *table, *([markdown_pairs("What", block.pairs)] if block.pairs else [])]


def _settings(facts: RunFacts) -> Pairs:
    """The training settings as configured, without those that are left empty."""
    return [(name, str(value)) for name, value in facts.job["training"].items() if value is not None]
