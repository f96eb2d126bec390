"""Seeded workloads shaped like real traces, for whoever has none at hand.

Each generator yields requests for ever: the same seed, the same requests, on any machine.
"""

import random
from collections.abc import Callable, Iterator
from itertools import islice

from stemcache.replay.errors import SettingsError
from stemcache.replay.record import Request
from stemcache.replay.synthesis import BLOCK, Synthesis, Text
from stemcache.replay.trace import Trace

_Generator = Callable[[random.Random, Synthesis], Iterator[Request]]


def make_workload(name: str, requests: int, seed: int) -> Trace:
    """So many requests of a workload.

    Raises:
        SettingsError: no workload has that name, or not a single request is asked for.
    """
    if name not in WORKLOADS:
        raise SettingsError(f"--workload {name!r} is not known; choose from {', '.join(WORKLOADS)}")
    if requests < 1:
        raise SettingsError(f"--requests must be at least 1, not {requests}")
    generator = WORKLOADS[name](random.Random(seed), Synthesis())  # noqa: S311 - it must repeat, not surprise
    return Trace(f"workload {name}, seed {seed}", BLOCK, list(islice(generator, requests)))


def _arrivals(rng: random.Random, mean_ms: float) -> Iterator[float]:
    """Poisson arrivals."""
    now = 0.0
    while True:
        yield now
        now += rng.expovariate(1 / mean_ms)


def _zipf(count: int, power: float) -> list[float]:
    return [1 / (rank + 1) ** power for rank in range(count)]


def _chat(rng: random.Random, make: Synthesis) -> Iterator[Request]:
    """Many users talk in turns under a few system prompts; the popular ones most."""
    systems = [make.segment(rng.choice((256, 512, 1024, 2048)) + rng.randrange(BLOCK)) for _ in range(40)]
    popular = _zipf(len(systems), 1.1)
    talks: list[Text] = [()] * 400
    for now in _arrivals(rng, 250):
        user = rng.randrange(len(talks))
        if not talks[user] or len(talks[user]) > 24:
            talks[user] = tuple(rng.choices(systems, popular))
        prompt = (*talks[user], make.segment(rng.randint(20, 400)))
        output = make.segment(rng.randint(50, 400))
        talks[user] = (*prompt, output)
        yield make.request(now, prompt, output)


def _agent(rng: random.Random, make: Synthesis) -> Iterator[Request]:
    """A few agents at a time call tools in a loop: one policy for all, tasks tried several times, short steps."""
    policy = make.segment(1250)
    tasks = [make.segment(rng.randint(30, 120)) for _ in range(50)]
    running: list[tuple[Text, int]] = []
    for now in _arrivals(rng, 700):
        while len(running) < 24:
            running.append(((policy, rng.choice(tasks)), rng.randint(6, 24)))
        text, steps = running.pop(rng.randrange(12))  # one that has waited, for its tool took a while
        output = make.segment(rng.randint(20, 160))
        if steps > 1:
            tool = make.segment(rng.choice((rng.randint(20, 120), rng.randint(200, 900))))
            running.append(((*text, output, tool), steps - 1))
        yield make.request(now, text, output)


def _fewshot(rng: random.Random, make: Synthesis) -> Iterator[Request]:
    """Evaluation batches: some long examples that many short questions share."""
    tasks = [make.segment(rng.randint(650, 1400)) for _ in range(24)]
    for now in _arrivals(rng, 60):
        question = make.segment(rng.randint(30, 140))
        yield make.request(now, (rng.choice(tasks), question), make.segment(rng.randint(1, 40)))


def _longdoc(rng: random.Random, make: Synthesis) -> Iterator[Request]:
    """Several questions on each of some long documents, under one instruction; some follow up on the last answer."""
    instruction = make.segment(90)
    shelf: list[tuple[Text, Text, int]] = []
    for now in _arrivals(rng, 4000):
        if len(shelf) < 12:
            new = (instruction, make.segment(rng.randint(6000, 24000)))
            shelf.append((new, new, rng.randint(3, 12)))
        document, talk, questions = shelf.pop(rng.randrange(len(shelf)))
        base = talk if rng.random() < 0.3 else document
        prompt = (*base, make.segment(rng.randint(12, 60)))
        output = make.segment(rng.randint(40, 200))
        if questions > 1:
            shelf.append((document, (*prompt, output), questions - 1))
        yield make.request(now, prompt, output)


WORKLOADS: dict[str, _Generator] = {"chat": _chat, "agent": _agent, "fewshot": _fewshot, "longdoc": _longdoc}
