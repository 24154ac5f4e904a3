"""Runs of a small model that is divided among ranks, for tests: started, cut back, and their weights read."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.processes import Ended, Running, rank_envs, start_warm
from tests.support import NO_DROPOUT, SMALL_MODEL, forget_after, only_run
from tests.tiny_models import tiny_config
from trainer.store.artifact_files import find_damage, listed_names, named_by_content
from trainer.store.manifest import MANIFEST, FileRecord, read_manifest, write_manifest
from trainer.store.names import BEST, CHECKPOINT_KIND, FINAL
from trainer.store.storage import Store
from trainer.training.checkpoint import STATE, state_name

FSDP = "training.sharding=fsdp"

SHORT: dict[str, Any] = {
    "training__max_steps": 4, "training__save_every": 2, "training__evaluate_every": 2, "training__global_batch": 12,
    "model__config": {**SMALL_MODEL, **NO_DROPOUT}, "evaluation__prompts": ["def "],
}  # fmt: skip
"""Four steps, saved and measured after two and after four; twelve samples a step, which 1, 2 and 3 ranks can share."""

WHOLE = "each rank needs memory for the whole model"
"""What is said where a model cannot be made part by part."""

LLAMA = tiny_config("llama")

LAST_STEP, STEP_BEFORE = "step-00000004", "step-00000002"


def start(
    said: Path,
    ranks: int,
    *arguments: object,
    through: Sequence[object] = (),
    only: int | None = None,
    env: Mapping[str, str] = {},
) -> list[Running]:
    """Start a run on some ranks; rank `only` through another module, with arguments of its own before those."""
    started = []
    for rank, own_env in enumerate(rank_envs(ranks)):
        module, *own = [*through, "--", "trainer.__main__"] if rank == only else ["trainer.__main__"]
        started.append(start_warm(said / str(rank), str(module), *own, *arguments, env={**env, **own_env}))
    return started


def finish(said: Path, config: Path, store: Path, ranks: int, *words: str) -> list[Ended]:
    """Train to the end on some ranks."""
    ended = [rank.wait() for rank in start(said, ranks, config, f"store={store}", *words)]
    assert [rank.status for rank in ended] == [0] * ranks, ended
    return ended


def cut_back(store: Path) -> Path:
    """Take away what the one run did after its step before the last: as if it had been killed then; returns its
    folder.
    """
    run = store / only_run(store)
    forget_after(run, 2)
    for name in (BEST, "eval.json", "report.html", "lineage.json"):
        (run / name).unlink()
    return run


def forget_measure(run: Path, step: str) -> None:
    """Make a run's checkpoint one that was saved when its evaluation was broken off."""
    store, key = Store(str(run.parents[1])), f"runs/{run.name}/checkpoints/{step}"
    manifest = read_manifest(store, key, CHECKPOINT_KIND)
    assert manifest is not None
    name = state_name(manifest.digests())
    folder = Path(store.path(key))
    saved = json.loads((folder / name).read_text())
    saved["state"] = {"step": saved["state"]["step"], "attempts": saved["state"]["attempts"], "unmeasured": True}
    text = json.dumps(saved, indent=2, sort_keys=True).encode() + b"\n"
    (folder / name).unlink()
    record = FileRecord(name=name, size=len(text), sha256=hashlib.sha256(text).hexdigest())
    if name != STATE:
        record = record.model_copy(update={"name": named_by_content(STATE, record.sha256)})
    (folder / record.name).write_bytes(text)
    files = [record, *(each for each in manifest.files if each.name != name)]
    write_manifest(
        store, key, manifest.model_copy(update={"files": files, "details": {**manifest.details, "scores": None}})
    )


def require_whole(run: Path, step: str) -> None:
    """Fail unless a checkpoint is committed and every file of it is as its manifest says."""
    store, key = Store(str(run.parents[1])), f"runs/{run.name}/checkpoints/{step}"
    manifest = read_manifest(store, key, CHECKPOINT_KIND)
    assert manifest is not None
    assert find_damage(store, key, manifest) == {}


def unlisted(run: Path, step: str) -> set[str]:
    """The files of a checkpoint's folder that its manifest does not list."""
    folder = run / "checkpoints" / step
    return {path.name for path in folder.iterdir()} - {MANIFEST} - (listed_names(folder) or set())


def copied(store: Path, to: Path) -> Path:
    """A copy of a store."""
    return Path(shutil.copytree(store, to))


def final_weights(store: Path) -> dict[str, torch.Tensor]:
    """The weights of the one run's final model."""
    return load_file(store / only_run(store) / FINAL / "model.safetensors")


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of two models' weights."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def joined(folder: Path, stem: str) -> dict[str, torch.Tensor]:
    """The whole tensors of a checkpoint's parts, put together by what the headers say, and by nothing of the
    project's.
    """
    pieces: dict[str, dict[int, torch.Tensor]] = {}
    for path in sorted(folder.glob(f"{stem}-part-*.safetensors")):
        with safe_open(path, "pt") as opened:
            told = json.loads(opened.metadata()["stretches"])
            for name in opened.keys():  # noqa: SIM118
                pieces.setdefault(name, {})[told.get(name, [0])[0]] = opened.get_tensor(name)
    whole = {}
    for name, found in pieces.items():
        parts = [found[start] for start in sorted(found)]
        whole[name] = torch.cat(parts) if parts[0].dim() else parts[0]
    return whole
