"""Forward passes of a `transformers` causal LM over one sequence, with the length counted here."""

import inspect
from typing import Any

import torch


class Runner:
    """Runs a model on the next tokens of a sequence.

    Args:
        model: a causal LM.

    Attributes:
        slow: feed tokens one by one wherever there is a past.
    """

    def __init__(self, model: Any, *, slow: bool = False) -> None:
        self.model = model
        self.slow = slow
        self.device = next(model.parameters()).device
        self.dtype: torch.dtype = next(model.parameters()).dtype
        parameters = inspect.signature(model.forward).parameters
        self._takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        self._names = frozenset(parameters)

    @torch.no_grad()
    def forward(self, tokens: torch.Tensor, start: int, cache: Any, keep: int = 1) -> torch.Tensor:
        """Feeds tokens [n] that follow `start` others; the cache object takes them up.

        Returns:
            Logits of the last `keep` of them, [keep, vocabulary].
        """
        if not self.slow or start == 0:
            return self._pass(tokens, start, cache, keep)
        steps = [self._pass(tokens[i : i + 1], start + i, cache, 1) for i in range(len(tokens))]
        return torch.cat(steps[-keep:])

    @torch.no_grad()
    def begin(self, tokens: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Feeds the first tokens of a sequence into whatever cache object the model makes.

        Returns:
            All logits [n, vocabulary], and that object (None if the model names none).
        """
        out = self.model(input_ids=tokens[None], use_cache=True)
        return out.logits[0], getattr(out, "cache", None)

    def _pass(self, tokens: torch.Tensor, start: int, cache: Any, keep: int) -> torch.Tensor:
        # Positions are given always: some models would count from 0 again.
        positions = torch.arange(start, start + len(tokens), device=self.device)
        optional = {"position_ids": positions[None], "logits_to_keep": keep}
        taken = {name: value for name, value in optional.items() if self._takes(name)}
        out = self.model(input_ids=tokens[None], cache=cache, use_cache=True, **taken)
        logits: torch.Tensor = out.logits[0, -keep:]
        return logits

    def _takes(self, name: str) -> bool:
        return self._takes_any or name in self._names
