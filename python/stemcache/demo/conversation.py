"""Several users talk to one model, turn by turn, all under one system prompt; each question is answered twice.

First with the prefix cache. Then without it: the whole prompt goes through the model, and the same answer is forced on
it, so that the logits of both can be compared token by token.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from stemcache.demo.models import VOCABULARY
from stemcache.integrations.transformers import CachedModel
from stemcache.integrations.transformers.runner import Runner

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is said.

    Attributes:
        users: who take turns.
        turns: of each user.
        system: tokens of the prompt that all share.
        question: tokens of a question.
        answer: tokens of an answer.
        seed: of what is said.
    """

    users: int = 3
    turns: int = 4
    system: int = 700
    question: int = 40
    answer: int = 24
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its answer.

    Attributes:
        user: who asked, from 1.
        turn: of that user, from 1.
        reused: tokens of the prompt from the cache.
        computed: tokens of the prompt that went through the model.
        with_cache: seconds to the first token.
        without_cache: the same for the plain model.
        difference: the largest between the logits of both, over the whole answer.
        agreed: whether the plain model's likeliest tokens are the answer.
        spread: standard deviation of the logits.
    """

    user: int
    turn: int
    reused: int
    computed: int
    with_cache: float
    without_cache: float
    difference: float
    agreed: bool
    spread: float


def play(model: Any, cached: CachedModel, plan: Plan, moved: Callable[[int], None]) -> list[Turn]:
    """Plays the conversation; `moved` is told after each turn how many are done."""
    rng = np.random.default_rng(plan.seed)
    system = _say(rng, plan.system)
    _warm_up(model, cached, system)
    histories = [system] * plan.users
    turns: list[Turn] = []
    for turn in range(1, plan.turns + 1):
        for user in range(plan.users):
            prompt = np.concatenate([histories[user], _say(rng, plan.question)])
            answer, done = _ask(model, cached, prompt, plan.answer, (user + 1, turn))
            histories[user] = np.concatenate([prompt, answer])
            turns.append(done)
            moved(len(turns))
    return turns


def _say(rng: np.random.Generator, count: int) -> Tokens:
    return rng.integers(3, VOCABULARY, count)


def _warm_up(model: Any, cached: CachedModel, tokens: Tokens) -> None:
    """What only the first call costs belongs to neither side."""
    cached.generate(tokens, 2, namespace="warm-up")
    _force(model, tokens, tokens[:2].tolist())


def _ask(model: Any, cached: CachedModel, prompt: Tokens, count: int, who: tuple[int, int]) -> tuple[Tokens, Turn]:
    logits: list[torch.Tensor] = []

    def likeliest(row: torch.Tensor) -> int:
        logits.append(row)
        return int(row.argmax())

    answer = cached.generate(prompt, count, sample=likeliest, stop_tokens=())
    seconds, plain = _force(model, prompt, answer.tokens)
    turn = Turn(
        user=who[0],
        turn=who[1],
        reused=answer.reused,
        computed=answer.computed,
        with_cache=answer.seconds_to_first_token,
        without_cache=seconds,
        difference=float((torch.stack(logits) - plain).abs().max()),
        agreed=plain.argmax(-1).tolist() == answer.tokens,
        spread=float(plain.std()),
    )
    return np.array(answer.tokens), turn


def _force(model: Any, prompt: Tokens, answer: list[int]) -> tuple[float, torch.Tensor]:
    """The model without this package's cache: seconds to its first token, and its logits for each of the answer."""
    runner, own = Runner(model), DynamicCache(config=model.config)
    start = time.perf_counter()
    first = runner.forward(torch.as_tensor(prompt), 0, own)
    first.argmax().item()
    seconds = time.perf_counter() - start
    rest = runner.forward(torch.as_tensor(answer[:-1]), len(prompt), own, keep=len(answer) - 1)
    return seconds, torch.cat([first, rest])
