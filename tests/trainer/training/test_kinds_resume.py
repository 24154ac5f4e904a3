"""Runs of other kinds of training, killed and continued, on one rank and on two, end with the bytes of one that was
not.
"""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.depth import once
from tests.processes import start_trainers
from tests.support import SMALL_MODEL, curve, final_bytes, only_run, small_values, steps_recorded, write_config
from tests.trainer.adapted_runs import LORA, lora_values, write_base
from trainer.data.tokenization import PreparedData

pytestmark = pytest.mark.slow

OFTEN = {"training__save_every": 1, "training__max_steps": 24, "training__micro_batch": 2}
"""Time to be interrupted."""

BERT = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 32,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "documents": {"training__document_mask": True, "model__config": SMALL_MODEL},
    "packed": {"training__packing": "best_fit", "model__config": SMALL_MODEL},
    "muon": {"training__optimizer": "muon", "model__config": SMALL_MODEL},
    "masked": {
        "training__objective": "masked", "model__config": BERT, "evaluation__prompts": [],
        "data__tokenizer": {"vocab_size": 384, "mask_token": "<mask>"},
    },
}  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize("ranks", once(1, 2))
@pytest.mark.parametrize("kind", once("lora", "muon", "masked", "documents", "packed"))
def test_a_killed_run_ends_with_the_same_bytes(
    raw: Path, prepared: tuple[Path, PreparedData], kind: str, ranks: int, tmp_path: Path
) -> None:
    base = write_base(tmp_path / "base", *prepared)
    changes = {**KINDS[kind], **(lora_values(base, {**LORA, "dropout": 0.1}) if kind == "lora" else {}), **OFTEN}
    whole, killed = (Path(shutil.copytree(prepared[0], tmp_path / name)) for name in ("whole", "killed"))
    configs = [write_config(tmp_path / f"{s.name}.yaml", small_values(raw, s, **changes)) for s in (whole, killed)]
    finish(tmp_path / "said-whole", ranks, configs[0])
    running = start_trainers(tmp_path / "said-killed", configs[1], ranks)
    ended = running[0].send_when(signal.SIGKILL, lambda: steps_recorded(killed) >= 9)
    assert ended.status == -signal.SIGKILL
    for other in running[1:]:
        other.wait()
    assert "continuing from" in finish(tmp_path / "said-last", ranks, configs[1])
    assert only_run(whole) == only_run(killed)
    assert curve(whole) == curve(killed)
    assert final_bytes(whole) == final_bytes(killed)


def finish(said: Path, ranks: int, config: Path) -> str:
    """Train to the end; returns what the first rank tells."""
    ended = [each.wait() for each in start_trainers(said, config, ranks)]
    assert [each.status for each in ended] == [0] * ranks, ended
    return ended[0].stderr
