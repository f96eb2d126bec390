"""Hypothesis profiles: `fast` is the default, `HYPOTHESIS_PROFILE=deep` takes some minutes."""

import os

from hypothesis import HealthCheck, settings

# No database and fixed examples: a run depends on the code alone. The step count is that of the state machines.
_SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]
_COMMON = settings(database=None, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("fast", _COMMON, derandomize=True, max_examples=60, stateful_step_count=50)
settings.register_profile("deep", _COMMON, max_examples=600, stateful_step_count=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
