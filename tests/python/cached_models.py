"""What the tests of `CachedModel` share: the plain run that is the truth, and a sampler that remembers."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hf_models import VOCABULARY, build
from stemcache.integrations.transformers import CachedModel, Prefill, make_pools

Tokens = npt.NDArray[np.int64]

CHUNK = 16
# Of logits that spread by about 1. Float32 noise was 1e-6 to 4e-5 when this was written.
TOLERANCE = 1e-3

model_of = cache(build)


def cached(model: Any, kv_tokens: int = 2048, states: int = 48, *, page_size: int = 1, **options: Any) -> CachedModel:
    """A cached model with chunks so small that short prompts have several."""
    pools = make_pools(model, kv_tokens, states, page_size=page_size, **options)
    return CachedModel(model, pools, chunk_size=CHUNK, prefill_chunk=2 * CHUNK)


def prompt(n: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(3, VOCABULARY, n)


@torch.no_grad()
def plain(model: Any, tokens: Any) -> torch.Tensor:
    """All logits of a run without any cache: [n, vocabulary]."""
    logits: torch.Tensor = model(input_ids=torch.as_tensor(np.asarray(tokens))[None], use_cache=False).logits[0]
    return logits


def resume(cached_model: CachedModel, tokens: Tokens, namespace: str | None = None) -> Prefill:
    """A prefill with the logits of all that was computed."""
    return cached_model.prefill(tokens, namespace=namespace, logits_to_keep=len(tokens))


def error(result: Prefill, truth: torch.Tensor) -> float:
    """The largest difference of logits."""
    assert len(result.logits) == result.computed
    return float((result.logits - truth[result.reused :]).abs().max())


class Remember:
    """Greedy sampling that keeps the logits."""

    def __init__(self) -> None:
        self.logits: list[torch.Tensor] = []

    def __call__(self, logits: torch.Tensor) -> int:
        self.logits.append(logits.clone())
        return int(logits.argmax())

    def error(self, model: Any, asked: Tokens, answer: list[int]) -> float:
        """The largest difference to the logits of the plain run over prompt and answer."""
        truth = plain(model, [*asked, *answer])[len(asked) - 1 : -1]
        return float((torch.stack(self.logits) - truth).abs().max())


def state_slot(cached_model: CachedModel, tokens: Tokens, namespace: str | None = None) -> int:
    """Where the state after exactly these tokens is kept."""
    match = cached_model.cache.match_prefix(tokens, namespace=namespace).match
    assert match.length == len(tokens)
    assert match.state_slot is not None
    return match.state_slot
