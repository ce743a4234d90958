"""The reader of pages detects wrong pages."""

from pathlib import Path

import pytest

from tests.kit.cli.pages import Block, Reader, blocks

FENCE = "```"


def follow(folder: Path, *found: Block) -> None:
    reader = Reader(folder)
    try:
        for block in found:
            reader.follow(block)
    finally:
        reader.stop()


def test_blocks_are_found_in_order_and_drawings_are_not() -> None:
    page = f"{FENCE}sh\na\n{FENCE}\ntext\n{FENCE}\ndrawing\n{FENCE}\n{FENCE}python x.py\nb\n{FENCE}\n"
    assert list(blocks(page)) == [Block("sh", "a\n"), Block("python x.py", "b\n")]


def test_the_output_must_be_that_of_the_page(tmp_path: Path) -> None:
    follow(tmp_path, Block("sh", "echo a"), Block("text", "a\n"))
    with pytest.raises(AssertionError):
        follow(tmp_path, Block("sh", "echo a"), Block("text", "b\n"))


def test_a_failing_command_and_an_unknown_block_are_detected(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        follow(tmp_path, Block("sh", "false | true"))
    with pytest.raises(AssertionError, match="unknown kind of block: 'ruby'"):
        follow(tmp_path, Block("ruby", ""))
    follow(tmp_path, Block("sh once", "exit 1"), Block("text like", "x"))


@pytest.mark.slow
def test_a_file_is_written_and_a_test_is_run(tmp_path: Path) -> None:
    follow(tmp_path, Block("toml a.toml", "x = 1\n"), Block("sh", "cat a.toml"), Block("text", "x = 1\n"))
    with pytest.raises(AssertionError):
        follow(tmp_path, Block("python test_x.py", "def test_x():\n    assert False\n"))


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_server_is_found_at_its_addresses_with_any_log_format(tmp_path: Path, form: str) -> None:
    follow(
        tmp_path,
        Block("sh server", f"tlserve --model succ --set log.format={form}"),
        Block("sh", "curl -s localhost:9464/readyz && curl -s -o body -w '%{http_code}' localhost:8000/healthz"),
        Block("text", '{"status": "ready"}\n200'),
    )


def test_a_server_that_does_not_start_is_detected(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="there is no model"):
        follow(tmp_path, Block("sh server", "tlserve --model nowhere"))
