"""Causal and masked language models of any family in `transformers`, new or pretrained, and chat models."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers import logging as transformers_logging
from transformers.activations import NewGELUActivation
from transformers.utils import GENERATION_CONFIG_NAME

from trainer.common.display import some
from trainer.common.errors import ConfigError, TokenizerError, brief
from trainer.common.transient import is_transient
from trainer.config.models import LoraConfig, ModelConfig
from trainer.models.adapters import add_adapter, find_heads, merge, restore_adapter
from trainer.models.generation import ends_of
from trainer.models.layers import in_mode, require_blocks
from trainer.models.losses import IGNORED, cross_entropies
from trainer.models.new_config import new_config, padding_hint
from trainer.models.pretrained import check_settings, find_pretrained, load_config, most_positions
from trainer.models.taken_tokenizer import read_vocabulary
from trainer.models.tensor_files import MODEL, find_parts
from trainer.models.tensor_rows import Tensors
from trainer.models.tokenizer import TOKENIZER_FILE, TokenizerInfo, vocabulary
from trainer.models.weights import check_weights, not_loaded
from trainer.store.storage import Store

log = logging.getLogger(__name__)

transformers_logging.disable_progress_bar()

CLASSIFIERS = (AutoModelForSequenceClassification, AutoModelForTokenClassification)
"""The kinds of models with a classification head."""


def located(store: Store, options: ModelConfig) -> ModelConfig:
    """The options with the folder of the pretrained model instead of its name; raises as `find_pretrained`."""
    if options.pretrained is None:
        return options
    return options.model_copy(update={"pretrained": find_pretrained(store, options.pretrained).folder})


def resolve_config(
    options: ModelConfig, tokenizer: TokenizerInfo, context: int, masked: bool = False, apart: bool = False
) -> PretrainedConfig:
    """The model's full configuration, checked against the tokenizer and the window length; `apart` if the documents of
    a window are kept apart.

    Raises `ConfigError` for unknown keys and invalid values, `TokenizerError` if tokenizer and model do not match.
    """
    pretrained = options.pretrained
    config = new_config(options, tokenizer, masked) if pretrained is None else _pretrained_config(pretrained)
    vocab_size = config.get_text_config().vocab_size
    if tokenizer.vocab_size > vocab_size:
        raise TokenizerError(
            f"the tokenizer's largest id is {tokenizer.max_id}, but the model has {vocab_size} embeddings; "
            "use the model's own tokenizer, or a new model"
        )
    check_positions(config, context, "training.context")
    if apart:
        check_one_scale(config, context, "training.context", " or training.document_mask to false")
    return config


def check_positions(config: PretrainedConfig, context: int, setting: str) -> None:
    """Raise `ConfigError` if a window is longer than the model's positions."""
    positions = most_positions(config)
    if positions < context:
        raise ConfigError(f"{setting} is {context}, but the model has {positions} positions")


def check_one_scale(config: PretrainedConfig, longest: int, setting: str, or_else: str = "") -> None:
    """Raise `ConfigError` if rows, the longest of that many tokens, would change each other's results.

    transformers scales the positions of LongRoPE in a whole forward pass by the longest row: with the long factors if
    it exceeds the length of the original training, otherwise with the short ones.
    """
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    scaled = [each for each in (rope, *rope.values()) if isinstance(each, dict) and each.get("rope_type") == "longrope"]
    original = min((each.get("original_max_position_embeddings") or longest for each in scaled), default=longest)
    if longest > original:
        raise ConfigError(
            f"{setting} is {longest}, but the model has LongRoPE positions, whose scale in a forward pass depends on "
            f"whether its longest text exceeds {original} tokens: texts of several lengths would change each other's "
            f"results; set {setting} to at most {original}{or_else}"
        )


def sketch_model(
    config: PretrainedConfig,
    attention: str | None = None,
    lora: LoraConfig | None = None,
    kind: Any = AutoModelForCausalLM,
) -> PreTrainedModel:
    """The model of a configuration on no device, to count its parameters; with an adapter if `lora` is given.

    Raises `ConfigError` if the model cannot be built, or as `find_targets`.
    """
    with torch.device("meta"):
        model = model_from(config, attention, kind)
        if lora is not None:
            heads = find_heads(model, made=()) if kind in CLASSIFIERS else []
            add_adapter(model, lora, seed=0, heads=heads)
    return model


class Units(NamedTuple):
    """Parameters of a model, of its largest block, and outside its blocks; tied parameters count once."""

    parameters: int
    largest_block: int
    outside: int


def count_units(model: PreTrainedModel) -> Units:
    """Count a model's parameters by the units that sharding gathers; raises `ConfigError` if it has no blocks."""
    found = require_blocks(model, model.config.model_type)
    blocks = [sum(each.numel() for each in block.parameters()) for block in found]
    parameters = sum(each.numel() for each in model.parameters())
    return Units(parameters, max(blocks), parameters - sum(blocks))


def build_model(
    options: ModelConfig, config: PretrainedConfig, seed: int, kind: Any = AutoModelForCausalLM
) -> PreTrainedModel:
    """A float32 model: pretrained, with an adapter if the job has one, or new with weights drawn by the seed.

    Raises `ConfigError` if it cannot be built.
    """
    torch.manual_seed(seed)
    if options.pretrained is None:
        return made_ready(model_from(config, options.attention, kind))
    model = load_model(options.pretrained, options.attention, kind=kind)
    if options.lora is not None:
        add_adapter(model, options.lora, seed, quantize=options.quantize)
    return model


def load_model(
    path: str | Path, attention: str | None = None, beside: str | None = None, kind: Any = AutoModelForCausalLM
) -> PreTrainedModel:
    """Load a float32 model from a folder that `save_pretrained` wrote; raises `ConfigError` on failure.

    An adapter is merged into its base model, which is in the folder `beside`.
    """
    if beside is not None:
        model = load_model(beside, attention)
        restore_adapter(model, Path(path))
        take_generation_config(model, str(path))  # the adapter's own: the base model's may have changed since
        return merge(model)
    return made_ready(keep_fixed(load_whole(kind, str(path), attn_implementation=attention)))


def load_whole(kind: Any, path: str, **options: Any) -> Any:
    """Like `load_pretrained`; raises `ConfigError` if the files lack weights, which transformers draws at random."""
    model, report = load_pretrained(kind, path, **options, output_loading_info=True)
    parameters = dict(model.named_parameters())  # a lacking buffer may be a constant
    if lacking := [name for name in not_loaded(report) if name in parameters]:
        raise ConfigError(
            f"model {path!r} lacks {len(lacking)} weights of a {type(model).__name__}: {some(lacking)}; use one with "
            f"all weights. To start with random ones, save what {kind.__name__}.from_pretrained loads from it"
        )
    return model


def load_pretrained(kind: Any, path: str, **options: Any) -> Any:
    """Load a model as `kind.from_pretrained` does, in float32 by default; all models are loaded by this function.

    Weights may be in the parts that several ranks wrote. Code of the model's repository is not run, and nothing is
    unpickled. Raises `ConfigError` if the model needs that, is of another kind, or files are missing or damaged.
    """
    check_settings(path)
    check_weights(path)
    try:
        return _load_files(kind, path, {"dtype": torch.float32, **options, "trust_remote_code": False})
    except Exception as error:  # file system, format and architecture errors alike
        raise ConfigError(f"model {path!r} cannot be loaded: {brief(error)}", is_transient(error)) from error


def _load_files(kind: Any, path: str, options: dict[str, Any]) -> Any:
    parts = find_parts(Path(path), MODEL)
    if not parts:
        return kind.from_pretrained(path, use_safetensors=True, **options)
    config = options.pop("config", None) or load_config(path)
    with torch.device("meta"):
        family = type(kind.from_config(config))
    tensors = Tensors(parts)
    weights = {name: tensors.read(name) for name in tensors.shapes()}
    loaded = family.from_pretrained(None, config=config, state_dict=weights, **options)
    take_generation_config(loaded[0] if isinstance(loaded, tuple) else loaded, path)
    return loaded


def take_generation_config(model: PreTrainedModel, path: str) -> None:
    """Load the folder's generation settings, if any, into a model that `from_pretrained` did not build."""
    if Path(path, GENERATION_CONFIG_NAME).is_file():
        try:
            model.generation_config = GenerationConfig.from_pretrained(path)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"{path}: {GENERATION_CONFIG_NAME} cannot be read: {brief(error)}", is_transient(error)
            ) from error


def model_from(config: PretrainedConfig, attention: str | None, kind: Any) -> PreTrainedModel:
    """Build a new float32 model; raises `ConfigError` if it cannot be built."""
    try:
        model: PreTrainedModel = kind.from_config(config, dtype=torch.float32, attn_implementation=attention)
    except Exception as error:  # architectures check their settings each in their own way
        raise ConfigError(
            f"a {config.model_type!r} model cannot be built from this configuration: {brief(error)}"
        ) from error
    return model


def made_ready(model: PreTrainedModel) -> PreTrainedModel:
    """Prepare a language model for training."""
    if model.loss_type is None:
        model.loss_type = "ForCausalLM"  # transformers' default, set here to avoid its warning
    return fuse_activations(let_padding_learn(model))


def keep_fixed(model: PreTrainedModel) -> PreTrainedModel:
    """Freeze the parameters that an architecture does not train (sinusoidal positions, routing biases).

    Loading makes them trainable, so a resumed run would train parameters that were frozen before.
    """
    with torch.device("meta"):
        built = type(model)(model.config)
    fixed = {name for name, parameter in built.named_parameters() if not parameter.requires_grad}
    for name in fixed:
        model.get_parameter(name).requires_grad_(False)
    return model


def let_padding_learn(model: PreTrainedModel) -> PreTrainedModel:
    """Make the embedding of a padding token trainable like any other.

    Pretraining has no padding: a padding token in the data is a real one, often the end of a document. The padding
    index of position embeddings is kept, because it determines how positions are counted.
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding) and "Position" not in type(module).__name__:
            module.padding_idx = None
    return model


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Have the model recompute its activations in the backward pass instead of keeping them."""
    # transformers 5.23 warns of the method's old name; 5.0 has no other.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})


def fuse_activations(model: PreTrainedModel) -> PreTrainedModel:
    """Replace transformers' tanh GELU, written as eight operations, by the equivalent single operation."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))
    return model


def _pretrained_config(name: str) -> PretrainedConfig:
    config = load_config(name)
    check_weights(name)
    return config


def check_same_vocabulary(pretrained: str, folder: str, tokenizer: TokenizerInfo) -> None:
    """Raise `TokenizerError` unless the data and the model, which is in that folder, have the same vocabulary."""
    path = Path(pretrained, TOKENIZER_FILE)
    remedy = f"set data.tokenizer.path to {str(path if path.is_file() else pretrained)!r}"
    if not tokenizer.json:
        raise TokenizerError(
            f"the data's tokenizer is not trained yet, so it is not that of the pretrained model {pretrained!r}; "
            f"{remedy}"
        )
    try:
        own = read_vocabulary(folder)
    except TokenizerError as error:
        raise TokenizerError(
            f"cannot check whether the data's tokenizer is that of the pretrained model {pretrained!r}: {error}; put "
            "the files of the model's tokenizer into its folder"
        ) from error
    if own != vocabulary(tokenizer.json):
        raise TokenizerError(
            f"the data's tokenizer is not that of the pretrained model {pretrained!r}: their vocabularies differ; "
            f"{remedy}"
        )


class MaskedLMLoss(nn.Module):
    """A masked language model together with its loss, so that both are wrapped, cast and compiled as one."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Sum over the batch of -log p(hidden token), in nats; both of shape [B, T], labels `IGNORED` if not hidden."""
        return masked_losses(self.model, input_ids, labels)[0].sum()


def masked_losses(
    model: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """-log p of each hidden token, in nats, float32, and whether it ranks first; both of shape [hidden tokens]."""
    logits_BTV = model(input_ids=input_ids, attention_mask=attention_mask).logits
    hidden = labels != IGNORED
    logits_NV, labels_N = logits_BTV[hidden], labels[hidden]
    return cross_entropies(logits_NV[None], labels_N[None]), logits_NV.detach().argmax(dim=-1) == labels_N


def tried_masked(model: PreTrainedModel, context: int, mask_id: int) -> MaskedLMLoss:
    """The model with its loss, after a trial; raises `ConfigError` if it fails, or does not see following tokens."""
    vocab_size = model.config.get_text_config().vocab_size
    ids = torch.arange(context).remainder(vocab_size)[None].to(model.device)
    ids[0, 0] = mask_id
    changed = ids.clone()
    changed[0, 1] = (ids[0, 1] + 1) % vocab_size
    try:
        with in_mode(model, training=False), torch.no_grad():
            logits, others = (model(input_ids=each).logits[0, 0].float() for each in (ids, changed))
    except Exception as error:  # architectures fail each in their own way
        kind = model.config.model_type
        hint = padding_hint(kind, model.config.get_text_config().pad_token_id)
        raise ConfigError(
            f"a {kind!r} model cannot be run on windows of {context} tokens (training.context): {brief(error)}{hint}"
        ) from error
    if torch.equal(logits, others):
        raise ConfigError(
            f"a {model.config.model_type!r} model as configured does not see the tokens after a hidden one; set "
            "is_decoder to false in its configuration, or use a bidirectional model"
        )
    return MaskedLMLoss(model)


def load_answering(
    folder: str, attention: str | None, details: dict[str, Any], beside: str | None = None
) -> PreTrainedModel:
    """A float32 causal model that generates up to the end of a turn; `details` are those of the encoded conversations.

    An adapter is merged into its base model in `beside`. Raises `ConfigError` if the model cannot be loaded or has
    fewer positions than a window, `TokenizerError` if ids of the data exceed its embeddings.
    """
    return stops_at_turns(load_model(folder, attention, beside), folder, details)


def stops_at_turns(model: PreTrainedModel, folder: str | Path, details: dict[str, Any]) -> PreTrainedModel:
    """Add the token that ends a turn to the tokens at which a model's generation stops; raises as `load_answering`, and
    `ConfigError` if its settings of generation contradict each other.
    """
    check_fits(model.config, str(folder), details["context"], details["vocab_size"])
    settings: Any = model.generation_config
    ends = list(dict.fromkeys([details["end_id"], *ends_of(settings)]))
    settings.eos_token_id = ends[0] if len(ends) == 1 else ends
    settings.pad_token_id = details["pad_id"]
    _settle_sampling(settings, str(folder))
    return model


def _settle_sampling(settings: GenerationConfig, name: str) -> None:
    """Set do_sample if settings of sampling are given without it, as in some published models: once changed,
    transformers saves no contradictory settings, so the first checkpoint would fail.
    """
    try:
        settings.validate(strict=True)
        return
    except ValueError:
        before, settings.do_sample = settings.do_sample, True
    try:
        settings.validate(strict=True)
    except ValueError as error:
        raise ConfigError(
            f"{GENERATION_CONFIG_NAME} of model {name!r} has settings that contradict each other: {brief(error)}; "
            "correct them in a local copy, and use that folder"
        ) from error
    log.info(
        "%s of %s has settings of sampling, but do_sample is %s: the published model has do_sample true",
        GENERATION_CONFIG_NAME, name, before,
    )  # fmt: skip


def check_fits(config: PretrainedConfig, name: str, context: int, vocab_size: int) -> None:
    """Raise `ConfigError` if the model's positions do not allow rows of that length, `TokenizerError` if it has too few
    embeddings.
    """
    check_positions(config, context, "data.context")
    check_one_scale(config, context, "data.context")
    embeddings = config.get_text_config().vocab_size
    if vocab_size > embeddings:
        raise TokenizerError(
            f"the tokenizer of {name!r} has ids up to {vocab_size - 1}, but the model has {embeddings} embeddings"
        )
