"""The model card: a README.md beside the model's files, in the form that model hubs show."""

from typing import Any

import yaml

from trainer.facts import RunFacts
from trainer.formats import count, short
from trainer.particulars import Pairs, environment_pairs, model_pairs
from trainer.runs import FINAL
from trainer.summary import describe_evaluation, make_verdict
from trainer.tables import Table, comparison_table, data_table, markdown_table, markdown_text, results_table

USE = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "{folder}"  # the folder that holds this card
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)

inputs = tokenizer("Once", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=40)[0]))
```"""


def make_card(facts: RunFacts) -> str:
    """The card as markdown with YAML front matter; the same text for the same run."""
    results = [markdown_text(make_verdict(facts)), markdown_text(describe_evaluation(facts))]
    if measured := results_table(facts):
        results.append(markdown_table(measured))
    if compared := comparison_table(facts):
        windows = "Before and after training, both on the windows that were evaluated on the way:"
        results += [windows, markdown_table(compared)]
    sections = [
        (f"{facts.name}", [_what_it_is(facts)]),
        ("Use", [USE.format(folder=f"{facts.key}/{FINAL}")]),
        ("Training data", [_data_note(facts), markdown_table(data_table(facts))]),
        ("Results", results),
        ("Model", [_pairs_table("Model", model_pairs(facts))]),
        ("Training settings", [_pairs_table("Setting", _settings(facts))]),
        ("Versions", [_pairs_table("What", environment_pairs(facts))]),
    ]
    text = [f"---\n{_front_matter(facts)}---"]
    for number, (title, paragraphs) in enumerate(sections):
        text += [f"{'#' if number == 0 else '##'} {markdown_text(title)}", *paragraphs]
    return "\n\n".join(text) + "\n"


def _front_matter(facts: RunFacts) -> str:
    family = facts.model_config.get("model_type")
    matter: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["headrace", "causal-lm", *([str(family)] if family else [])],
    }
    return yaml.safe_dump(matter, sort_keys=False, allow_unicode=True)


def _what_it_is(facts: RunFacts) -> str:
    plan, start = facts.plan, facts.job["model"]["pretrained"]
    origin = f"trained further from `{markdown_text(start)}`" if start else "trained from scratch"
    tokens = f"{count(plan.total_tokens)} tokens in {count(plan.total_steps)} optimizer steps"
    return (
        f"A causal language model ({markdown_text(str(facts.model_config.get('model_type', 'unknown family')))}) of "
        f"{short(sum(facts.parameters.values()))} parameters, {origin} on {tokens} with headrace {facts.final.headrace}. "
        f"Its run has the fingerprint `{facts.config['fingerprint']}`; `lineage.json` beside the run's report names every "
        "artifact behind it."
    )


def _data_note(facts: RunFacts) -> str:
    fraction = facts.job["data"]["validation_fraction"]
    return (
        f"Corpora are mixed with p ~ tokens ^ {facts.job['training']['alpha']:g}; a share of {fraction:g} of the documents is "
        "held out by a hash of their content, so that exact copies of a document are on one side."
    )


def _settings(facts: RunFacts) -> Pairs:
    """The training settings as configured, without those that are left empty."""
    return [(name, str(value)) for name, value in facts.job["training"].items() if value is not None]


def _pairs_table(title: str, pairs: Pairs) -> str:
    return markdown_table(Table([title, "Value"], [list(pair) for pair in pairs], words=2))
