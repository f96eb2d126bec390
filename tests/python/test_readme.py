"""The example in the README runs, and prints what it says."""

import re
import subprocess
import sys
from pathlib import Path


def test_the_example_runs() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True)
    assert re.match(r'Match\(length=1200, .*reason="miss"', done.stdout)
