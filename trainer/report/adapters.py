"""What is told of an adapter: its settings, how much it trains, and how it is loaded."""

import re

from trainer.common.formats import count, number, short
from trainer.report.account import Tile
from trainer.report.tables import Pairs
from trainer.runs.facts import RunFacts


def adapter_pairs(facts: RunFacts) -> Pairs:
    """The adapter in words, if there was one."""
    lora = facts.job["model"].get("lora")
    if lora is None or facts.trained is None:
        return []
    targets = ", ".join(lora["targets"] or ["every linear layer"])
    told = f"rank {lora['rank']}, alpha {lora['alpha']:g}, dropout {lora['dropout']:g}, on {targets}"
    return [
        ("Trained", f"{count(facts.trained['trained'])} parameters, {_share(facts.trained)}"),
        ("LoRA", f"{told}; {'published as adapter' if facts.is_adapter else 'merged'}"),
    ]


def adapter_tiles(facts: RunFacts) -> list[Tile]:
    """How much of the model was trained, if that is not all."""
    trained = facts.trained
    return [Tile("Trained parameters", short(trained["trained"]), _share(trained))] if trained else []


def loaded_beside(use: str, facts: RunFacts) -> str:
    """A program that loads the final model, as it loads an adapter beside its base model if it is one."""
    if not facts.is_adapter:
        return use
    base = facts.config["base"]["hub"] or facts.job["model"]["pretrained"]
    beside = (
        rf'base = \1.from_pretrained("{base}", config=AutoConfig.from_pretrained(folder))'
        "\nmodel = PeftModel.from_pretrained(base, folder)"
    )
    loaded = re.sub(r"model = (\w+)\.from_pretrained\(folder\)", beside, use)
    return re.sub(
        r"(?m)^from transformers import ", "from peft import PeftModel\nfrom transformers import AutoConfig, ", loaded
    )


def _share(trained: dict[str, int]) -> str:
    return f"{number(100 * trained['trained'] / trained['parameters'], 2)} % of {count(trained['parameters'])}"
