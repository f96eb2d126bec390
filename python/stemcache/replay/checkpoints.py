"""Where a replayed engine keeps recurrent states: `ends`, `branches`, `every:N`, or several of them."""

from dataclasses import dataclass

from stemcache.replay.errors import SettingsError

_CHOICES = "ends, branches, every:N, or several with commas between"
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The points of a request at which a state is kept.

    Attributes:
        ends: at the end of the request, input and output, floored to whole pages.
        branches: where the match says that a state would have made the hit longer.
        every: at each multiple of so many tokens; 0 for never.
    """

    ends: bool = False
    branches: bool = False
    every: int = 0

    def in_prompt(self, hit: int, length: int, branching: int | None) -> list[int]:
        """The points of a prompt past the hit, in order."""
        points = set(self._multiples(hit, length))
        if self.branches and branching is not None:
            points.add(branching)
        return sorted(points)

    def in_output(self, prompt: int, length: int, page_size: int) -> list[int]:
        """The points past the prompt, and the end (which may lie in the prompt's last page), in order."""
        points = set(self._multiples(prompt, length))
        if self.ends:
            points.add(length // page_size * page_size)
        return sorted(points)

    def most(self, length: int) -> int:
        """No request of so many tokens keeps more states than this."""
        return self.ends + self.branches + (length // self.every if self.every else 0)

    def _multiples(self, start: int, stop: int) -> range:
        return range(start // self.every * self.every + self.every, stop + 1, self.every) if self.every else range(0)

    def __str__(self) -> str:
        """The text that `parse_checkpoints` reads."""
        words = ["ends"] * self.ends + ["branches"] * self.branches + [f"every:{self.every}"] * bool(self.every)
        return ",".join(words)


def parse_checkpoints(text: str) -> Checkpoints:
    """Reads a list of modes.

    Raises:
        SettingsError: an unknown mode, one given twice, or a step that is not a whole number from 1 up.
    """
    words = [word.strip() for word in text.split(",")]
    names = [word.partition(":")[0] for word in words]
    if len(set(names)) < len(names):
        raise SettingsError(f"--checkpoint {text!r}: a mode is given twice")
    every = [_step(word) for word in words if word not in ("ends", "branches")]
    return Checkpoints("ends" in words, "branches" in words, sum(every))


def _step(word: str) -> int:
    name, colon, number = word.partition(":")
    if name != "every" or not colon:
        raise SettingsError(f"--checkpoint: {word!r} is not a mode; choose {_CHOICES}")
    if not (number.isascii() and number.isdigit() and len(number) <= _DIGITS and int(number) > 0):
        raise SettingsError(f"--checkpoint: in {word!r} the step must be a whole number from 1 up")
    return int(number)
