"""What a node of the tree takes: growth of the process over 100,000 leaves, by tokens a leaf.

Each size is measured in a process of its own, so that none sees what another freed. Linux only.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np

from stemcache import RadixIndex

LEAVES = 100_000


def resident() -> int:
    """Bytes of this process that lie in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def bytes_a_leaf(tokens: int) -> float:
    """Growth over `LEAVES` leaves of so many tokens each."""
    index, slots = RadixIndex(), np.arange(1, tokens + 1)
    before = resident()
    for i in range(LEAVES):
        index.insert(np.arange(i * tokens, (i + 1) * tokens), slots + i * tokens, i + 1)
    return (resident() - before) / LEAVES


def main() -> None:
    """Prints a line for each size."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("tokens", type=int, nargs="*", default=[1, 16, 100], help="tokens a leaf")
    sizes = arguments.parse_args().tokens
    if len(sizes) == 1:
        grown = bytes_a_leaf(sizes[0])
        print(f"{sizes[0]} tokens a leaf: {grown:.0f} bytes, {grown - 12 * sizes[0]:.0f} beside 12 a token")
        return
    for size in sizes:
        subprocess.run([sys.executable, __file__, str(size)], check=True)


if __name__ == "__main__":
    main()
