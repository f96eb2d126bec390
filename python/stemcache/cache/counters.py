"""What the cache did not do, and why."""

import logging
from collections import Counter

logger = logging.getLogger("stemcache")

# Why a state was not cached. Caching is optional work: each is counted, and warned of once.
REASONS = {
    "no_slot": "no state slot could be had: all cached states are locked or in use",
    "unaligned": "the state does not lie at the end of a whole page",
    "rejected": "the state has consumed tokens that were not committed",
    "behind": "the state lies before what is cached already",
    "stale_lock": "the tree was reset while the request ran",
    "not_finite": "the state is not finite",
}


class Skips:
    """Counts states that were not cached, by reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, reason: str) -> None:
        """One more; the first of its kind is logged."""
        self._counts[reason] += 1
        if self._counts[reason] == 1:
            logger.warning("a state was not cached: %s; this is counted from now on, not logged", REASONS[reason])

    def as_dict(self) -> dict[str, int]:
        """Every reason with its count."""
        return {f"skipped_{reason}": self._counts[reason] for reason in REASONS}
