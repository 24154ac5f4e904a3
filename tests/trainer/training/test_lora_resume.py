"""A run that adapts a model, killed and continued, on one rank and on two, ends with the bytes of one that was not."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.processes import Running, start_ranks, start_warm
from tests.support import curve, final_bytes, only_run, small_values, steps_recorded, write_config
from tests.trainer.adapted_runs import LORA, lora_values, write_base
from trainer.corpus.preparation import PreparedData

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_ends_with_the_same_bytes(
    raw: Path, prepared: tuple[Path, PreparedData], ranks: int, tmp_path: Path
) -> None:
    base = write_base(tmp_path / "base", *prepared)
    often = {"training__save_every": 1, "training__max_steps": 24, "training__micro_batch": 2}
    stores = [Path(shutil.copytree(prepared[0], tmp_path / name)) for name in ("whole", "killed")]
    configs = [
        write_config(
            tmp_path / f"{store.name}.yaml", small_values(raw, store, **lora_values(base, {**LORA, "dropout": 0.1}, **often))
        )
        for store in stores
    ]
    for number, (store, config) in enumerate(zip(stores, configs, strict=True)):
        if number:
            running = start(tmp_path / "said-killed", ranks, config)
            ended = running[0].send_when(signal.SIGKILL, lambda store=store: steps_recorded(store) >= 9)  # type: ignore[misc]
            assert ended.status == -signal.SIGKILL
            for other in running[1:]:
                other.wait()
        for each in start(tmp_path / f"said-{number}", ranks, config):
            ended = each.wait()
            assert ended.status == 0, ended.stderr
    assert "continuing from" in (tmp_path / "said-1").joinpath(*(["0"] if ranks > 1 else []), "stderr").read_text()
    assert only_run(stores[0]) == only_run(stores[1])
    assert curve(stores[0]) == curve(stores[1])
    assert final_bytes(stores[0]) == final_bytes(stores[1])


def start(said: Path, ranks: int, config: Path) -> list[Running]:
    if ranks == 1:
        return [start_warm(said, "trainer.__main__", config)]
    return start_ranks(said, ranks, "trainer.__main__", config)
