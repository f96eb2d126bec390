"""`python -m stemcache.cli` is `stemcache`."""

from stemcache.cli.app import main

if __name__ == "__main__":
    main()
