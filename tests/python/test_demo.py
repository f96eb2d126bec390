"""`stemcache demo` from the outside."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("torch", reason="the demo needs torch")
pytest.importorskip("transformers", minversion="5.24", reason="the demo needs transformers 5.24 or newer")

from stemcache.cli.app import app

pytestmark = pytest.mark.filterwarnings("default")

ROW = re.compile(r"^ +(\d)\.(\d) +([\d,]+) +([\d,]+) +([\d,]+) +[\d.]+ ms +[\d.]+ ms +[\d.]+ x +(\S+)", re.MULTILINE)


def invoke(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, [str(argument) for argument in ("demo", *arguments)])


def rows(result: Result) -> list[list[float]]:
    assert result.exit_code == 0, result.output
    return [[float(cell.replace(",", "")) for cell in row] for row in ROW.findall(result.stdout)]


def test_each_turn_pays_for_what_is_new() -> None:
    found = rows(invoke("--users", 3, "--turns", 2))
    assert [row[:2] for row in found] == [[1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3]]
    # The second user finds the last chunk of the system prompt, the third the state left where they branched off.
    assert [row[3] for row in found] == [0, 512, 640, 763, 763, 763]
    assert all(row[2] == row[3] + row[4] for row in found)
    assert all(row[5] < 1e-3 for row in found)


@pytest.mark.parametrize("family", ["bamba", "falcon-h1"])
def test_other_families_play_too(family: str) -> None:
    result = invoke("--model", family, "--users", 1, "--turns", 2)
    assert [row[3] for row in rows(result)] == [0, 763]
    assert "answers: the plain model picks the same tokens in 2 of 2" in result.stdout


def test_int8_states_make_a_small_difference() -> None:
    found = rows(invoke("--model", "bamba", "--users", 1, "--turns", 2, "--int8"))
    assert found[1][3] == 763
    assert 1e-4 < found[1][5] < 0.5


def test_an_unknown_family_is_refused() -> None:
    result = invoke("--model", "llama")
    assert result.exit_code == 2
    assert "--model is 'llama'" in result.output


def test_a_report_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    result = invoke("--report", tmp_path / "nowhere" / "demo.html")
    assert result.exit_code == 2
    assert "there is no folder" in result.output


class Pointers(HTMLParser):
    """What a page takes from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {value}" for key, value in attrs if key in {"src", "href"} and not _inside(value)]


def _inside(target: str | None) -> bool:
    return target is not None and target.startswith("#")


def test_the_report_needs_no_other_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="reports need matplotlib")
    target = tmp_path / "demo.html"
    assert invoke("--model", "bamba", "--users", 2, "--turns", 1, "--report", target).exit_code == 0
    text = target.read_text(encoding="utf-8")
    pointers = Pointers()
    pointers.feed(text.replace("xlink:href", "href"))
    assert pointers.found == []
    assert text.count("<svg") == 3
    assert "Tried before it was trusted" in text


def test_the_command_line_alone_imports_no_torch() -> None:
    code = "import sys, stemcache.cli.app; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_missing_is_said_with_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None; "
    code += "sys.argv[1:] = ['demo']; from stemcache.cli.app import app; app()"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'stemcache[transformers]'" in done.stderr
