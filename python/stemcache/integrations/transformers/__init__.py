"""Prefix caching for the hybrid models of Hugging Face `transformers`: `CachedModel` around a causal LM.

model = CachedModel(AutoModelForCausalLM.from_pretrained(...).eval())
answer = model.generate(input_ids, max_new_tokens=100)
answer.tokens, answer.reused, answer.computed
"""

from stemcache.integrations.transformers import requirements  # noqa: F401 - it refuses what is missing
from stemcache.integrations.transformers.errors import UnsupportedModelError
from stemcache.integrations.transformers.memory import make_pools
from stemcache.integrations.transformers.model import CachedModel, Generation, Prefill
from stemcache.integrations.transformers.proof import Proof

__all__ = ["CachedModel", "Generation", "Prefill", "Proof", "UnsupportedModelError", "make_pools"]
