"""Small hybrid models with random weights, built from configurations alone: nothing is downloaded."""

from typing import Any

import torch
import transformers

VOCABULARY = 512
_LINEAR, _FULL = "linear_attention", "full_attention"
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    # Random weights of the usual size give logits that hardly differ, and states that hardly matter.
    "initializer_range": 0.1,
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 32, "mamba_n_groups": 1, "mamba_chunk_size": 64}

# Class of the configuration, and what it takes besides.
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-next": (
        "Qwen3NextConfig",
        {
            "num_hidden_layers": 4,
            "head_dim": 32,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "layer_types": [_LINEAR, _LINEAR, _LINEAR, _FULL],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
        },
    ),
    "bamba": ("BambaConfig", {**_MAMBA, "num_hidden_layers": 4, "attn_layer_indices": [2]}),
    "falcon-h1": ("FalconH1Config", {**_MAMBA, "num_hidden_layers": 4, "mamba_d_ssm": 256}),
}
FAMILIES = tuple(_FAMILIES)


def build(family: str, seed: int) -> Any:
    """A model of the family, float32 on the CPU, ready to answer."""
    name, settings = _FAMILIES[family]
    torch.manual_seed(seed)
    config = getattr(transformers, name)(**_COMMON, **settings)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config).float().eval()
    _slow_decay(model)
    return model


@torch.no_grad()
def _slow_decay(model: Any) -> None:
    """Lets the states remember hundreds of tokens, as trained models do."""
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.fill_(-4.0)
        if name.endswith("dt_bias"):
            parameter.fill_(-2.0)
