"""A model is tried before it is trusted: some take a restored state and silently start from nothing.

A short prompt is run at once, and again resumed from a prefix that went out of a cache object and into a new one. Both
must give the same logits; with a part of the state zeroed they must not, or the trial has shown nothing.
"""

from dataclasses import dataclass

import torch

from stemcache.errors import InvalidArgumentError
from stemcache.integrations.transformers.errors import UnsupportedModelError
from stemcache.integrations.transformers.layers import CacheLayers, Prefix, spoiled
from stemcache.integrations.transformers.runner import Runner

LENGTH = 40
CUTS = (17, 32)
# Several tokens follow each: what goes wrong may be right when only one does. Few: the state matters most at first.
_COMPARED = 8

# How far two runs of one model may differ: a share of the spread of its logits, and one of what a missing part of the
# state does to them.
_EXACT, _ROUNDED = (1e-3, 1e-2), (1e-1, 3e-1)


@dataclass(frozen=True, slots=True)
class Proof:
    """What the trial found: root mean squares over logits, of the worse cut.

    Attributes:
        error: the resumed run against the plain one.
        zeroed: the run resumed without one part of the state, the one that matters least, against the plain one.
        spread: standard deviation of the logits.
        dtype: of the model.
        slow: tokens after a restored prefix were fed one by one.
    """

    error: float
    zeroed: float
    spread: float
    dtype: torch.dtype
    slow: bool = False

    @property
    def exact(self) -> bool:
        """The resumed run equals the plain one, up to rounding."""
        of_spread, of_zeroed = _EXACT if self.dtype.itemsize >= 4 else _ROUNDED
        return self.error < min(of_spread * self.spread, of_zeroed * self.zeroed)

    def __str__(self) -> str:
        """The numbers in a sentence."""
        numbers = f"without a part of the state: {self.zeroed:.1e}; their spread: {self.spread:.1e}"
        return f"its logits are off by {self.error:.1e} ({numbers})"


def prove(runner: Runner, *, slow_resume: bool = False) -> tuple[CacheLayers, Proof]:
    """Tries a model; the runner is made slow if it has to be, and may be.

    Raises:
        UnsupportedModelError: it cannot go on from a prefix, or only token by token and that was not allowed.
    """
    tokens = probe(runner)
    plain, layers = look(runner, tokens)
    proof = _try(runner, layers, tokens, plain)
    if proof.exact:
        return layers, proof
    slowly = _try(_slowed(runner), layers, tokens, plain)
    if not slowly.exact:
        raise UnsupportedModelError(_refusal(runner, proof, f"Token by token {slowly}."))
    if not slow_resume:
        hint = f"Token by token {slowly}: slow_resume=True uses that."
        raise UnsupportedModelError(_refusal(runner, proof, hint))
    runner.slow = True
    return layers, slowly


def probe(runner: Runner) -> torch.Tensor:
    """The tokens of the trial, [n]."""
    vocabulary = runner.model.config.get_text_config(decoder=True).vocab_size
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary, (LENGTH,), generator=generator).to(runner.device)


def look(runner: Runner, tokens: torch.Tensor) -> tuple[torch.Tensor, CacheLayers]:
    """Runs a model on some tokens, to see what its cache object holds.

    Returns:
        All logits [n, vocabulary], and the layers.

    Raises:
        UnsupportedModelError: there is no recurrent state, or nothing that a pool could hold.
    """
    if runner.model.training:
        raise UnsupportedModelError("the model is in training mode: call its eval() first")
    logits, cache = runner.begin(tokens)
    try:
        layers = CacheLayers.of(runner.model.config, cache) if cache is not None else None
    except InvalidArgumentError as error:
        raise UnsupportedModelError(f"{_name(runner)}: {error}") from error
    if layers is None or layers.layouts.state is None:
        raise UnsupportedModelError(f"{_name(runner)} keeps no recurrent states in its cache object")
    return logits, layers


def _try(runner: Runner, layers: CacheLayers, tokens: torch.Tensor, plain: torch.Tensor) -> Proof:
    errors, controls = [], []
    for cut in CUTS:
        prefix = _prefix(runner, layers, tokens[:cut])
        after, expected = tokens[cut : cut + _COMPARED], plain[cut : cut + _COMPARED]
        resumed = [
            runner.forward(after, cut, layers.restore(each), keep=_COMPARED) for each in (prefix, *spoiled(prefix))
        ]
        error, *others = [_distance(logits, expected) for logits in resumed]
        errors.append(error)
        controls += others
    return Proof(max(errors), min(controls), float(plain.float().std()), runner.dtype, runner.slow)


def _prefix(runner: Runner, layers: CacheLayers, tokens: torch.Tensor) -> Prefix:
    cache = layers.fresh()
    runner.forward(tokens, 0, cache)
    try:
        CacheLayers.of(layers.config, cache)
    except InvalidArgumentError as error:
        raise UnsupportedModelError(f"{_name(runner)} does not fill the cache object it is given: {error}") from error
    return layers.read(cache, len(tokens))


def _distance(logits: torch.Tensor, expected: torch.Tensor) -> float:
    return float((logits - expected).float().square().mean().sqrt())


def _slowed(runner: Runner) -> Runner:
    return Runner(runner.model, slow=True)


def _name(runner: Runner) -> str:
    return f"{type(runner.model).__name__} (model type {runner.model.config.model_type!r})"


def _refusal(runner: Runner, proof: Proof, hint: str) -> str:
    cuts = " and ".join(map(str, CUTS))
    return f"{_name(runner)} {_fault(proof)}: resumed at {cuts} of {LENGTH} tokens {proof}. {hint}"


def _fault(proof: Proof) -> str:
    if proof.error >= 0.5 * proof.zeroed > 0 and proof.error > _EXACT[0] * proof.spread:
        return "does not take up a restored state"
    if proof.error < _EXACT[0] * proof.spread:
        return "hardly cares for its state, so that nothing can be proved"
    return "differs from its plain run"
