"""The command line: `stemcache`, or `python -m stemcache.cli`."""
