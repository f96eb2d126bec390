"""Where states are kept, and the settings around it."""

from typing import Any

import pytest

from stemcache.replay.checkpoints import Checkpoints, parse_checkpoints
from stemcache.replay.errors import SettingsError
from stemcache.replay.settings import Settings


@pytest.mark.parametrize("text", ["ends", "branches", "every:512", "ends,branches", "ends,branches,every:64"])
def test_modes_are_read_and_shown(text: str) -> None:
    assert str(parse_checkpoints(text)) == text


def test_order_and_blanks_do_not_matter() -> None:
    assert parse_checkpoints(" every:64 , ends") == Checkpoints(ends=True, every=64)


BAD = [
    "",
    "end",
    "ends,",
    "every",
    "every:",
    "every:0",
    "every:-4",
    "every:1.5",
    "every:9999999999",
    "ends:3",
    "every:²",
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_mode_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--checkpoint"):
        parse_checkpoints(text)


def test_a_mode_given_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match="twice"):
        parse_checkpoints("every:64,every:128")


def test_the_points_of_a_prompt_lie_past_the_hit() -> None:
    points = Checkpoints(ends=True, branches=True, every=32)
    assert points.in_prompt(32, 100, 48) == [48, 64, 96]
    assert points.in_prompt(33, 96, 64) == [64, 96]
    assert points.in_prompt(0, 20, None) == []


def test_the_points_of_an_output_end_with_the_last_whole_page() -> None:
    assert Checkpoints(ends=True, every=32).in_output(96, 150, 16) == [128, 144]
    assert Checkpoints(ends=True).in_output(100, 103, 16) == [96]
    assert Checkpoints(every=32).in_output(100, 127, 16) == []


@pytest.mark.parametrize("hit", [0, 32, 50])
def test_no_request_keeps_more_states_than_said(hit: int) -> None:
    points = Checkpoints(ends=True, branches=True, every=8)
    kept = {*points.in_prompt(hit, 100, 56), *points.in_output(100, 150, 4)}
    assert len(kept) <= points.most(150)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"page_size": 0}, "--page-size must be at least 1, not 0"),
        ({"concurrency": -1}, "--concurrency must be at least 1, not -1"),
        ({"kv_tokens": 0}, "--kv-tokens must be at least 1, not 0"),
        ({"states": 0}, "--states must be at least 1, not 0"),
        ({"page_size": 16, "kv_tokens": 15}, "--kv-tokens 15 is less than a page of 16"),
        ({"page_size": 16, "chunk": 24}, "--chunk must be a multiple of the page size 16, not 24"),
        ({"chunk": -64}, "--chunk must be a multiple"),
        ({"page_size": 16, "checkpoints": Checkpoints(every=24)}, "every:N must be a multiple of the page size 16"),
        ({"checkpoints": Checkpoints()}, "--checkpoint names no mode"),
    ],
)
def test_settings_that_no_replay_can_have_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        Settings(**fields)


@pytest.mark.parametrize(("page", "chunk"), [(1, 64), (16, 64), (48, 96), (512, 512)])
def test_the_chunk_is_at_least_64_tokens_in_whole_pages(page: int, chunk: int) -> None:
    assert Settings(page_size=page).chunk == chunk
