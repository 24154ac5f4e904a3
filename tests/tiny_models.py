"""Configurations of a few thousand parameters for any causal family of `transformers`, based on its defaults."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import AutoConfig, PreTrainedModel

from trainer.config.models import ModelConfig
from trainer.models.causal import build_model, resolve_config
from trainer.models.tokenizer import TokenizerInfo

SIZES: dict[int, str] = {
    32: "hidden_size n_embd d_model word_embed_proj_dim embedding_size emb_dim embedding_dim input_embedding_size "
    "output_embedding_size attention_hidden_size lru_width shape_embed_dim pronunciation_embed_dim "
    "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size "
    "shared_experts_intermediate_size moe_shared_expert_intermediate_size router_hidden_size "
    "hidden_size_per_layer_input ple_embed_dim",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers "
    "num_decoder_layers num_blocks num_key_value_heads num_kv_heads swa_num_key_value_heads num_experts_per_tok "
    "moe_topk moe_k num_experts_per_token num_query_groups zero_expert_num",
    4: "num_attention_heads n_head n_heads encoder_attention_heads decoder_attention_heads num_encoder_attention_heads "
    "num_decoder_attention_heads attention_heads num_heads swa_num_attention_heads num_experts num_local_experts "
    "n_routed_experts moe_num_experts linear_num_key_heads linear_num_value_heads linear_num_heads index_n_heads "
    "rotary_dim",
    64: "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_inner dff dim_ff n_inner feed_forward_size "
    "ffn_hidden_size intermediate_size_mlp dense_intermediate_size max_position_embeddings n_positions n_ctx "
    "max_seq_len max_target_positions context_length shape_vocab_size pronunciation_vocab_size",
    8: "head_dim swa_head_dim dim_head attention_head_size d_head kv_channels linear_key_head_dim "
    "linear_value_head_dim linear_head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim index_head_dim mamba_d_head "
    "mamba_head_dim kv_lora_rank q_lora_rank o_lora_rank gated_norm_rank laurel_rank adapter_rank d_rel rel_extent "
    "state_size ssm_state_size mamba_d_state time_step_rank mamba_dt_rank mamba_n_heads mamba_num_heads",
    1: "n_shared_experts num_shared_experts moe_num_shared_experts n_group topk_group num_expert_group "
    "first_k_dense_replace num_dense_layers moe_layer_start_index n_groups mamba_n_groups",
    16: "sliding_window window_size qk_head_dim local_attention",
}
"""Families' names for sizes, and the tiny values."""

BY_LAYER = ("layer_types", "layers_block_type", "mlp_layer_types", "indexer_types")
"""Settings with an entry per layer: the chosen layers contain each kind once."""

_TINY_BLT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_LOCAL_BLT = {**_TINY_BLT, "vocab_size": 320, "hidden_size_global": 64}

OWN: dict[str, dict[str, Any]] = {
    "blt": {
        "encoder_hash_byte_group_vocab": 64, "patcher_config": {**_TINY_BLT, "vocab_size": 320},
        "encoder_config": _LOCAL_BLT, "decoder_config": _LOCAL_BLT, "global_config": {**_TINY_BLT, "hidden_size": 64},
    },
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}},
    },
    "dbrx": {
        "d_model": 32, "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note_text": {
        "num_hidden_layers": 3, "layer_types": ["indexed_attention", "indexed_attention", "sliding_attention"],
        "head_dim": 16,
        "mlp_layer_types": ["dense", "sparse", "sparse"], "num_key_value_heads": 4, "index_topk": 16,
        "per_layer_config": {"2": {"num_attention_heads": 2, "num_key_value_heads": 2}},
    },
    "falcon_h1": {"mamba_d_ssm": 64},
    "flint": {"mlp_only_layers": []},
    "gemma3n_text": {
        "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "intermediate_size": 64, "num_kv_shared_layers": 1, "activation_sparsity_pattern": [0.0, 0.0, 0.0],
        "vocab_size_per_layer_input": 320,
    },
    "gemma4_text": {"vocab_size_per_layer_input": 320},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "ministral": {"head_dim": 8, "num_key_value_heads": 2},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 16,
        "indexer_compress_ratio": 4,
        "hc_lowrank": 8, "ngram_vocab_size_base": 400,
    },
    "reformer": {
        "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [4, 8], "attn_layers": ["local", "lsh"], "num_buckets": 2,
        "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8,
    },
    "zamba": {
        "num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16, "num_key_value_heads": 4,
    },
    "zamba2": {
        "num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16, "num_key_value_heads": 4, "mamba_headdim": 8,
    },
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
"""Further settings, or other sizes, that a family needs."""


def tiny_config(family: str) -> dict[str, Any]:
    """Values for `model.config` that make the family small, including `model_type`."""
    default = AutoConfig.for_model(family).to_dict()
    sizes = {
        name: size for size, names in SIZES.items() for name in names.split() if isinstance(default.get(name), int)
    }
    layers = _layers(default)
    if "kv_lora_rank" in sizes:
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    return {"model_type": family, **sizes, **layers, **OWN.get(family, {})}


def _layers(default: Mapping[str, Any]) -> dict[str, Any]:
    names = [name for name in BY_LAYER if isinstance(default.get(name), list)]
    if not names:
        return {}
    rows: Sequence[tuple[str, ...]] = list(zip(*(default[name] for name in names), strict=True))
    first = {
        rows.index(row)
        for row in rows
        if any(row[i] not in {r[i] for r in rows[: rows.index(row)]} for i in range(len(row)))
    }
    chosen = sorted(first if len(first) > 1 else {*first, min(set(range(len(rows))) - first)})
    count = {"num_hidden_layers": len(chosen)} if "num_hidden_layers" in default else {}
    return {**{name: [default[name][number] for number in chosen] for name in names}, **count}


def new_model(
    values: dict[str, Any] | str, context: int = 32, max_id: int = 299, seed: int = 0, **options: Any
) -> PreTrainedModel:
    """A new model of these settings for a tokenizer with ids up to `max_id`."""
    chosen = ModelConfig(config=values, **options)
    tokenizer = TokenizerInfo(json="", sha256="", eos_id=0, max_id=max_id)
    return build_model(chosen, resolve_config(chosen, tokenizer, context), seed)
