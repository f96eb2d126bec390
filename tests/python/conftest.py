"""Hypothesis profiles: `fast` is the default, `HYPOTHESIS_PROFILE=deep` takes some minutes."""

import os

from hypothesis import HealthCheck, settings

# No database and fixed examples: a run depends on the code alone. The step count is that of the state machines.
_COMMON = {
    "database": None,
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
settings.register_profile("fast", derandomize=True, max_examples=60, stateful_step_count=50, **_COMMON)
settings.register_profile("deep", max_examples=3000, stateful_step_count=100, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
