"""Tiny models of each hybrid family, with random weights, built from configurations alone.

With the weights of `transformers`' default initialisation a recurrent state hardly matters, and a test of restored
states has no power; `build` draws larger weights and slows the decay, so that logits spread by about 1 and a zeroed
state moves them by 2 to 8.
"""

from collections.abc import Callable
from typing import Any

import torch
import transformers

VOCABULARY = 97
_LINEAR, _FULL = "linear_attention", "full_attention"
_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}
_MLP = {"intermediate_size": 48, "num_hidden_layers": 4}
_DELTA = {
    "head_dim": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": [_LINEAR, _LINEAR, _LINEAR, _FULL],
}
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
    "mamba_n_groups": 2,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}


def _config(name: str, *parts: dict[str, Any], **more: Any) -> Callable[[], Any]:
    settings = {key: value for part in (_SIZES, *parts) for key, value in part.items()} | more
    return lambda: getattr(transformers, name)(**settings)


CONFIGS: dict[str, Callable[[], Any]] = {
    "qwen3_5": _config("Qwen3_5TextConfig", _HEADS, _MLP, _DELTA),
    "qwen3_next": _config(
        "Qwen3NextConfig", _HEADS, _MLP, _DELTA, _EXPERTS, num_experts=4, shared_expert_intermediate_size=16
    ),
    "olmo_hybrid": _config(
        "OlmoHybridConfig", _HEADS, _MLP, _DELTA, linear_num_key_heads=4, linear_value_head_dim=16, head_dim=8
    ),
    "kimi_linear": _config(
        "KimiLinearConfig",
        _HEADS,
        _MLP,
        _EXPERTS,
        num_key_value_heads=4,
        layer_types=_DELTA["layer_types"],
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
        num_local_experts=4,
        linear_head_dim=8,
        linear_num_heads=4,
    ),
    "bamba": _config("BambaConfig", _HEADS, _MLP, _MAMBA, attn_layer_indices=[2]),
    "granitemoehybrid": _config(
        "GraniteMoeHybridConfig",
        _HEADS,
        _MLP,
        _MAMBA,
        layer_types=[_LINEAR, _LINEAR, _FULL, _LINEAR],
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=16,
    ),
    "falcon_h1": _config("FalconH1Config", _HEADS, _MLP, _MAMBA, mamba_n_groups=1, mamba_d_ssm=64, num_hidden_layers=3),
    "nemotron_h": _config(
        "NemotronHConfig",
        _HEADS,
        _EXPERTS,
        head_dim=8,
        intermediate_size=48,
        layers_block_type=[_LINEAR, "moe", _FULL, "mlp", _LINEAR],
        ssm_state_size=16,
        mamba_num_heads=8,
        mamba_head_dim=8,
        n_groups=2,
        chunk_size=16,
        n_routed_experts=4,
        moe_shared_expert_intermediate_size=16,
    ),
    "zamba2": _config(
        "Zamba2Config",
        _HEADS,
        num_hidden_layers=5,
        intermediate_size=48,
        layers_block_type=[_LINEAR, _LINEAR, "hybrid", _LINEAR, "hybrid"],
        mamba_d_state=16,
        n_mamba_heads=8,
        chunk_size=16,
        adapter_rank=8,
        use_mem_rope=True,
    ),
    "lfm2": _config("Lfm2Config", _HEADS, _MLP, layer_types=["conv", "conv", _FULL, "conv"]),
    "mamba2": _config(
        "Mamba2Config", num_heads=8, head_dim=8, state_size=16, n_groups=2, num_hidden_layers=3, chunk_size=16
    ),
}
# Families whose forward drops a restored recurrent state, without a word, when more than one token follows.
DEAF_CONFIGS: dict[str, Callable[[], Any]] = {
    "jamba": _config(
        "JambaConfig",
        _HEADS,
        _MLP,
        attn_layer_period=4,
        attn_layer_offset=2,
        num_experts=4,
        num_experts_per_tok=2,
        mamba_d_state=8,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "zamba": _config(
        "ZambaConfig",
        _HEADS,
        num_hidden_layers=5,
        intermediate_size=48,
        layers_block_type=[_LINEAR, _LINEAR, "hybrid", _LINEAR, "hybrid"],
        mamba_d_state=8,
        mamba_dt_rank=4,
    ),
    "mamba": _config("MambaConfig", num_hidden_layers=3, state_size=8),
    "falcon_mamba": _config("FalconMambaConfig", num_hidden_layers=3, state_size=8),
    "minimax": _config(
        "MiniMaxConfig",
        _HEADS,
        _MLP,
        head_dim=8,
        layer_types=[_LINEAR, _FULL, _LINEAR, _FULL],
        num_local_experts=4,
        num_experts_per_tok=2,
        block_size=16,
    ),
}
# In these the recurrent branch is a small part of the sum at the usual weights.
_LARGE_WEIGHTS = {"falcon_h1", "lfm2", "jamba"}


def build(family: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """The model of a family, ready for inference."""
    config = (CONFIGS | DEAF_CONFIGS)[family]()
    config.initializer_range = 0.3 if family in _LARGE_WEIGHTS else 0.15
    torch.manual_seed(seed)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    _slow_decay(model)
    return model.to(dtype).eval()


@torch.no_grad()
def _slow_decay(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.fill_(-4.0)
        if name.endswith("dt_bias"):
            parameter.fill_(-2.0)
