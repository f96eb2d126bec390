"""`stemcache replay` from the outside: what it prints and writes, and how it exits."""

import gzip
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import stemcache
from replay_traces import lines, record, write
from stemcache.cli.app import app
from stemcache.replay import files
from stemcache.replay.errors import ReplayError

QUESTIONS = [record(13, [1, 2, 10 * n, 10 * n + 1], 2, timestamp=1000 * n) for n in (1, 2, 3)]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in ("replay", *arguments)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "t.jsonl.gz", QUESTIONS)


def test_a_trace_is_replayed_and_its_figures_printed(trace: Path) -> None:
    result = invoke(trace, "--block", 4, "--chunk", 4, "--no-outputs")
    assert result.exit_code == 0, result.output
    assert re.search(r"served from the cache\s+8\s+20\.5 %", result.stdout)
    assert re.search(r"ideal: infinite memory\s+16\s+41\.0 %", result.stdout)
    assert re.search(r"match\s+3\s", result.stdout)
    assert "every slot accounted for: " in result.stdout


@pytest.mark.parametrize("name", ["chat", "agent", "fewshot", "longdoc"])
def test_a_workload_needs_no_trace(name: str) -> None:
    result = invoke("--workload", name, "--requests", 20, "--kv-tokens", 60_000, "--states", 8, "--concurrency", 3)
    assert result.exit_code == 0, result.output
    assert f"workload {name}, seed 1" in result.stdout


def test_the_limit_cuts_a_workload_too() -> None:
    assert re.search(r"requests\s+7\s", invoke("--workload", "chat", "--limit", 7).stdout)


def test_the_json_has_all_figures_and_settings(trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    assert invoke(trace, "--block", 4, "--chunk", 4, "--no-outputs", "--json", target).exit_code == 0
    told = json.loads(target.read_text())
    assert told["trace"] == {"name": "t.jsonl.gz", "block": 4, "requests": 3}
    assert told["settings"]["page_size"] == 4
    assert told["settings"]["checkpoints"] == "ends,branches"
    assert (told["figures"]["served"], told["figures"]["ideal"], told["figures"]["refused"]) == (8, 16, 0)
    assert told["operations"]["match"]["calls"] == 3
    assert told["index"]["locks_held"] == 0
    assert [account["problems"] for account in told["accounts"]] == [[], []]
    assert told["problems"] == []


class References(HTMLParser):
    """Everything in a page that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "srcset", "action", "poster"):
                self.found.append(value or "")
            self.found += re.findall(r"url\((.*?)\)", value or "")


@pytest.mark.parametrize("timed", [True, False])
def test_the_report_is_one_file_that_needs_no_other(tmp_path: Path, timed: bool) -> None:
    pytest.importorskip("matplotlib")
    records = QUESTIONS if timed else [{**one, "timestamp": 5} for one in QUESTIONS]
    trace, target = write(tmp_path / "<b>&t.jsonl", records), tmp_path / "r.html"
    assert invoke(trace, "--block", 4, "--chunk", 4, "--kv-tokens", 40, "--report", target).exit_code == 0
    page = target.read_text()
    parser = References()
    parser.feed(page)
    assert all(reference.startswith("#") for reference in parser.found), parser.found
    assert parser.tags.count("svg") == 3
    assert not {"script", "link", "img", "iframe", "b"} & set(parser.tags)
    assert "://" not in page
    assert "@import" not in page
    assert "&lt;b&gt;&amp;t.jsonl" in page
    assert ("minutes of the trace" in page) == timed
    assert "every slot accounted for" in page
    assert "served from the cache" in page


def test_the_same_replay_draws_the_same_pictures(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pages = []
    for name in ("a.html", "b.html"):
        assert invoke(trace, "--block", 4, "--report", tmp_path / name).exit_code == 0
        pages.append(re.findall(r"<svg.*?</svg>", (tmp_path / name).read_text(), re.DOTALL))
    assert pages[0] == pages[1]


def test_a_report_without_matplotlib_says_how_to_get_it(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    result = invoke(trace, "--block", 4, "--report", tmp_path / "r.html")
    assert result.exit_code == 2
    assert "pip install 'stemcache[report]'" in result.stderr
    assert not (tmp_path / "r.html").exists()


BAD_FILES = {
    "not json": (b"nonsense\n", "line 1: not JSON"),
    "second line": (lines(QUESTIONS[:1]).encode() + b"{}\n", "line 2: the field 'timestamp' is missing"),
    "empty": (b"", "there is no request in it"),
    "cut gzip": (gzip.compress(lines(QUESTIONS).encode())[:40], "the gzip data is broken or cut off"),
    "zero length": (b'{"timestamp":0,"input_length":0,"output_length":1,"hash_ids":[]}\n', "line 1: 'input_length'"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_trace_ends_with_2_a_message_and_nothing_written(tmp_path: Path, case: str) -> None:
    content, problem = BAD_FILES[case]
    bad, target = tmp_path / "bad.jsonl", tmp_path / "out.json"
    bad.write_bytes(content)
    result = invoke(bad, "--block", 4, "--json", target)
    assert (result.exit_code, result.stdout) == (2, "")
    assert str(bad) in result.stderr
    assert problem in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


BAD_OPTIONS: dict[str, tuple[list[object], str]] = {
    "zero page": (["--page-size", 0], "--page-size"),
    "negative chunk": (["--chunk", -4], "--chunk"),
    "zero pool": (["--kv-tokens", 0], "--kv-tokens"),
    "zero states": (["--states", 0], "--states"),
    "no flight": (["--concurrency", 0], "--concurrency"),
    "no limit": (["--limit", 0], "--limit"),
    "text": (["--states", "many"], "--states"),
    "chunk": (["--page-size", 4, "--chunk", 6], "--chunk must be a multiple of the page size 4, not 6"),
    "step": (["--checkpoint", "every:6"], "every:N must be a multiple of the page size 4, not 6"),
    "mode": (["--checkpoint", "sometimes"], "'sometimes' is not a mode"),
    "policy": (["--policy", "mru"], "mru"),
    "huge pool": (["--kv-tokens", 1 << 62], "cannot be made"),
    "requests": (["--requests", 5], "--requests is for workloads"),
    "both": (["--workload", "chat"], "give either a trace or --workload NAME"),
    "unknown": (["--nothing"], "--nothing"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_a_bad_option_ends_with_2_and_names_it(trace: Path, case: str) -> None:
    arguments, problem = BAD_OPTIONS[case]
    result = invoke(trace, "--block", 4, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert problem in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--json", "x.json"], "give either a trace or --workload NAME"),
        (["--workload", "none"], "'none' is not known"),
        (["--workload", "chat", "--block", 16], "--block is for traces"),
        (["missing.jsonl"], "missing.jsonl: No such file or directory"),
    ],
)
def test_what_cannot_be_replayed_ends_with_2(arguments: list[object], problem: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert not Path("x.json").exists()


def test_a_target_that_cannot_be_written_is_refused_before_the_work(trace: Path, tmp_path: Path) -> None:
    for target, problem in ((tmp_path / "none" / "x", "there is no folder"), (tmp_path, "is a folder, not a file")):
        result = invoke(trace, "--block", 4, "--json", target)
        assert result.exit_code == 2
        assert problem in result.stderr


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x"
    target.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ReplayError, match="No space left on device"):
        files.write_whole(target, "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "old")]


def test_a_refused_request_is_not_an_error(trace: Path) -> None:
    result = invoke(trace, "--block", 4, "--kv-tokens", 12)
    assert result.exit_code == 0
    assert re.search(r"refused: larger than the KV pool\s+3\s", result.stdout)


def test_an_unsound_end_exits_with_1(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise stemcache.InvariantError("invariant 7: planted")

    monkeypatch.setattr("stemcache.replay.run._check", broken)
    result = invoke(trace, "--block", 4)
    assert result.exit_code == 1
    assert "NOT SOUND: invariant 7: planted" in result.stdout


def test_help_teaches_modes_and_examples() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    for word in ("branches", "every:N", "--checkpoint", "stemcache replay --workload chat", "Exit code"):
        assert word in result.stdout


def test_the_version_is_the_package_s() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.stdout == f"stemcache {stemcache.__version__}\n"


def test_replay_needs_no_torch(trace: Path) -> None:
    """In a process of its own, where importing torch fails."""
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['stemcache', 'replay', *sys.argv[1:]]\n"
        "from stemcache.cli.app import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(trace), "--block", "4"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "every slot accounted for" in done.stdout
    assert done.stderr == ""
