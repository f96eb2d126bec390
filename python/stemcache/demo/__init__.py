"""A conversation with a small hybrid model, with and without the cache. Needs the extra `transformers`."""

from stemcache.integrations.transformers import requirements  # noqa: F401 - it refuses what is missing
