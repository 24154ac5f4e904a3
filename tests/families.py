"""Try every causal family of `transformers` at a tiny size.

A family is built, checked and trained as in a job. Its loss is compared with that of `transformers`. It is then saved,
loaded and trained further; the result must be bit-identical to uninterrupted training.
"""

import contextlib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL_FAMILIES

from tests.support import cpu_runtime
from tests.tiny_models import tiny_config
from trainer.common.errors import ConfigError
from trainer.config.models import ModelConfig
from trainer.config.training import TrainingConfig
from trainer.data.dataset import Batch
from trainer.models.adapters import count_trained
from trainer.models.causal import build_model, load_model, resolve_config, sketch_model
from trainer.models.losses import next_tokens, token_losses
from trainer.models.tokenizer import TokenizerInfo
from trainer.models.trial import tried_objective
from trainer.store.artifact_files import fetch_artifact
from trainer.store.names import CHECKPOINT_KIND
from trainer.store.storage import Store
from trainer.training.checkpoint import TrainState
from trainer.training.restoring import restore
from trainer.training.runtime import Runtime
from trainer.training.saver import Saver, SaverOptions, take_snapshot
from trainer.training.schedules import make_schedule
from trainer.training.step import make_optimizer, train_step

VOCABULARY = TokenizerInfo(json="", sha256="", eos_id=0, max_id=299)
CONTEXT, STEPS = 32, 3
TRAINING = TrainingConfig(max_steps=20, context=CONTEXT, learning_rate=1e-2, weight_decay=0.0)
LARGEST = 20_000_000
"""The most parameters of a tiny model."""


class Case(NamedTuple):
    """A family, with the settings that make it causal."""

    family: str
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        return " ".join([self.family, *(f"{key}={str(value).lower()}" for key, value in self.settings.items())])


class Verdict(NamedTuple):
    """The result of trying a family: the message that refuses it, or its properties."""

    refused: str = ""
    causal: str = ""
    learns: str = ""
    loss: str = ""
    routers: str = ""
    resumes: str = ""


_POSITIONS_AFTER_PADDING = {"is_decoder": True, "pad_token_id": 300, "max_position_embeddings": 400}

NEEDED: dict[str, dict[str, Any]] = {
    **{name: {"is_decoder": True} for name in (
        "bert", "bert-generation", "big_bird", "electra", "ernie", "megatron-bert", "rembert", "roc_bert", "roformer",
    )},
    **{name: _POSITIONS_AFTER_PADDING for name in (
        "camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl",
    )},
    "modernbert-decoder": {"pad_token_id": 300},
    "prophetnet": {"pad_token_id": 300, "max_position_embeddings": 400},
    "reformer": {"is_decoder": True, "hash_seed": 0, "axial_pos_embds": False},
    "xlm": {"causal": True, "pad_token_id": 300},
    "xmod": {**_POSITIONS_AFTER_PADDING, "default_language": "en_XX"},
}  # fmt: skip
"""Settings for families that are refused with their defaults."""


def cases() -> list[Case]:
    """Every family; those refused with their defaults a second time, with the settings that they need."""
    return [
        Case(family, settings)
        for family in CAUSAL_FAMILIES
        for settings in ({}, NEEDED.get(family))
        if settings is not None
    ]


class Learner:
    """A model with the trainer's setup for training."""

    def __init__(self, model: PreTrainedModel, runtime: Runtime) -> None:
        self.model, self.runtime = model, runtime
        self.objective = tried_objective(model, ModelConfig(config={}), TRAINING)
        self.optimizer = make_optimizer(self.objective, TRAINING)
        self.prepared = runtime.accelerator.prepare_optimizer(self.optimizer)
        self.schedule = make_schedule(self.optimizer, TRAINING, TRAINING.max_steps or 0)

    def learn(self, first: int, last: int) -> None:
        self.objective.train()
        for number in range(first, last):
            windows = windows_BT(number)
            torch.manual_seed(number)
            batch = Batch([{"input_ids": windows}], windows[:, 1:].numel(), windows.numel())
            train_step(self.objective, self.prepared, self.schedule, batch, 1.0, self.runtime)


def windows_BT(number: int) -> torch.Tensor:
    """Windows of shape [10, CONTEXT] in which each id precedes another token once."""
    generator = torch.Generator().manual_seed(number)
    ids = torch.cat([torch.randperm(300, generator=generator), torch.arange(20)])
    return torch.cat([ids[:310].view(10, CONTEXT - 1), ids[310:, None]], dim=1)


def make(case: Case, **settings: Any) -> PreTrainedModel:
    """The tiny model of a case, built as in a job. Raises `PipelineError` if the job would be refused."""
    values = {"model_type": case.family}
    with contextlib.suppress(Exception):  # its own configuration refuses the defaults: let the job report it
        values = tiny_config(case.family)
    options = ModelConfig(config={**values, **case.settings, **settings})
    config = resolve_config(options, VOCABULARY, CONTEXT)
    parameters = count_trained(sketch_model(config)).parameters
    assert parameters <= LARGEST, f"{case.name} has {parameters:,} parameters: its sizes have other names"
    return build_model(options, config, 0)


def try_family(case: Case, folder: Path) -> Verdict:
    """Build, check, compare, train, save, load and resume training."""
    try:
        learner = Learner(make(case), cpu_runtime())
    except ConfigError as error:
        return Verdict(refused=" ".join(str(error).split()))
    loss = compare_loss(learner)
    tables, given = token_tables(learner.model), learner.model.get_input_embeddings().weight
    before = [table.detach().clone() for table in tables]
    learner.learn(0, STEPS)
    changed = [(table != old)[:300].any(dim=1) for table, old in zip(tables, before, strict=True)]
    learnt = all(rows.all() for table, rows in zip(tables, changed, strict=True) if table is given or rows.any())
    resumed = continued(learner, folder)
    for one in (learner, resumed):
        one.learn(STEPS, STEPS + 2)
    weights, again = learner.model.state_dict(), resumed.model.state_dict()
    same = weights.keys() == again.keys() and all(torch.equal(again[name], value) for name, value in weights.items())
    return Verdict("", "yes", "yes" if learnt else "no", loss, try_routers(case), "yes" if same else "no")


def token_tables(model: PreTrainedModel) -> list[nn.Parameter]:
    """The token embeddings; some families have several, not all of which get gradients."""
    vocab_size = model.config.get_text_config().vocab_size
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding) and m.num_embeddings == vocab_size]
    return list({table.get_parameter("weight") for table in (*tables, model.get_input_embeddings())})


def compare_loss(learner: Learner) -> str:
    """Compare our sum of losses with transformers' mean, in training mode with the same dropout."""
    learner.objective.train()
    windows = windows_BT(0)
    torch.manual_seed(0)
    ours = learner.objective(windows).detach() / windows[:, 1:].numel()
    for labels, name in ((windows, "equal"), (next_tokens(windows), "equal, given shifted labels")):
        torch.manual_seed(0)
        theirs = learner.model(input_ids=windows, labels=labels, use_cache=False).loss.detach()
        if torch.allclose(ours, theirs, rtol=1e-5, atol=0.0):
            return name
    return f"differs: {float(ours):.5f} for {float(theirs):.5f}"


def try_routers(case: Case) -> str:
    """Whether our loss includes the routers' loss, if the configuration has one."""
    if "output_router_logits" not in AutoConfig.for_model(case.family).to_dict():
        return ""
    try:
        learner = Learner(make(case, output_router_logits=True), cpu_runtime())
    except ConfigError as error:
        assert "adds no router loss" in str(error), str(error)
        return "refused: transformers adds none"
    windows = windows_BT(0)
    with torch.no_grad():
        plain = token_losses(learner.model.eval(), windows, next_tokens(windows)).sum()
        ours = learner.objective.eval()(windows)
    assert ours > plain * (1 + 1e-5)
    return compare_loss(learner)


def continued(learner: Learner, folder: Path) -> Learner:
    """The same training, after saving and loading a checkpoint."""
    store, run = Store(str(folder)), "runs/tiny"
    with Saver(store, run, learner.model, SaverOptions([], "0123456789abcdef", 1)) as saver:
        saver.save(partial(
            take_snapshot, state=TrainState(step=STEPS, attempts=STEPS), model=learner.model,
            objective=learner.objective,
            optimizer=learner.optimizer, schedule=learner.schedule, scaler=None, epoch=None,
        ))  # fmt: skip
    saved = fetch_artifact(store, f"{run}/checkpoints/step-{STEPS:08d}", CHECKPOINT_KIND)
    again = Learner(load_model(saved), learner.runtime)
    restore(saved, again.objective, again.optimizer, again.schedule, None)
    return again
