"""Prefix caching for the hybrid models of Hugging Face `transformers`: `CachedModel` around a causal LM.

    model = CachedModel(AutoModelForCausalLM.from_pretrained(...).eval())
    answer = model.generate(input_ids, max_new_tokens=100)
    answer.tokens, answer.reused, answer.computed
"""

_NEEDS = "stemcache.integrations.transformers needs torch, and transformers 5.24 or newer: pip install stemcache[transformers]"

try:
    import torch  # noqa: F401
    import transformers
except ImportError as error:
    raise ImportError(_NEEDS) from error

if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < (5, 24):
    raise ImportError(f"{_NEEDS} (this is transformers {transformers.__version__})")

from stemcache.integrations.transformers.errors import UnsupportedModelError
from stemcache.integrations.transformers.memory import make_pools
from stemcache.integrations.transformers.model import CachedModel, Generation, Prefill
from stemcache.integrations.transformers.proof import Proof

__all__ = ["CachedModel", "Generation", "Prefill", "Proof", "UnsupportedModelError", "make_pools"]
