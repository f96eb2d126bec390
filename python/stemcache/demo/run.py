"""The demo from start to end."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from stemcache.demo.conversation import Plan, Turn, play
from stemcache.demo.models import FAMILIES, build
from stemcache.integrations.transformers import CachedModel, Proof, make_pools
from stemcache.replay.errors import SettingsError

_KV_TOKENS, _STATES, _PREFILL_CHUNK = 16384, 128, 256


@dataclass(frozen=True, slots=True)
class Show:
    """What was played.

    Attributes:
        title: which model, and how much was said.
        proof: what was found when the model was wrapped.
        turns: in the order in which they were played.
    """

    title: str
    proof: Proof
    turns: list[Turn]


def show(family: str, plan: Plan, *, int8: bool = False, moved: Callable[[int], None] = lambda _: None) -> Show:
    """Builds a model and plays a conversation with it; `moved` is told after each turn how many are done.

    Raises:
        SettingsError: no such family.
    """
    if family not in FAMILIES:
        raise SettingsError(f"--model is {family!r}, but it must be one of: {', '.join(FAMILIES)}")
    # Its hints about faster kernels are for large models.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    with _one_thread():
        return _show(family, plan, int8, moved)


def _show(family: str, plan: Plan, int8: bool, moved: Callable[[int], None]) -> Show:
    model = build(family, plan.seed)
    checkpoints = _STATES if int8 else 0
    pools = make_pools(model, _KV_TOKENS, _STATES, checkpoint="int8" if int8 else None, checkpoint_states=checkpoints)
    cached = CachedModel(model, pools, prefill_chunk=_PREFILL_CHUNK)
    turns = play(model, cached, plan, moved)
    cached.cache.sanity_check()
    return Show(_title(type(model).__name__, plan, int8), cached.proof, turns)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A model so small gains nothing from more, and times vary less."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _title(name: str, plan: Plan, int8: bool) -> str:
    states = "int8 states" if int8 else "states as they are"
    return (
        f"{name}, random weights, one thread, {states}: {plan.users} users x {plan.turns} turns, "
        f"{plan.system} tokens of system prompt, questions of {plan.question}, answers of {plan.answer}"
    )
