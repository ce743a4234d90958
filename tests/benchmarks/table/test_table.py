"""The table of performance: what it makes of values, and the whole command with scripted peers."""

import json
import shlex
import sys

import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.table.peers import InProcessPeer, PrefillPeer, ServerPeer, read_peers
from tests.benchmarks.table.rows import OURS, PARTS, findings
from tests.benchmarks.table.run import prefill_rate, tokens_per_s
from tests.kit.cli.pages import blocks
from tests.kit.source_tree import CHECKOUT
from tlserve.errors import OperatorError

SCRIPT = shlex.join([sys.executable, str(CHECKOUT / "tests/benchmarks/table/scripted.py")])

PEERS = f"""
[ours]
program = "{SCRIPT} ours"
benchmarks = "{SCRIPT} ours"
arguments = []

[[server]]
name = "peer"
command = "{SCRIPT} server {{format}} {{port}}"
ready = "http://127.0.0.1:{{port}}/health"
formats = ["Q4", "Q8"]
same_file = "Q4"

[[prefill]]
name = "peer-bench"
command = "{SCRIPT} prefill {{format}} {{tokens}}"
formats = ["Q4", "Q8"]

[[in_process]]
name = "rival"
command = "{SCRIPT} in-process {{format}} {{streams}}"
formats = ["Q8"]
pattern = 'tok/s ([0-9.]+)'
"""
LOAD = f"{SCRIPT} load {{model}} {{streams}} {{shared_words}}"

TABLE = """\
| load | tlserve | peer | ratio |
| --- | --- | --- | --- |
| output tokens/s, 1 stream | 300 | 120 (peer Q8) | 2.50 (2.50 to 2.50) |
| output tokens/s, 8 streams | 2400 | 960 (peer Q8) | 2.50 (2.50 to 2.50) |
| output tokens/s, 32 streams | 9600 | 3840 (peer Q8) | 2.50 (2.50 to 2.50) |
| output tokens/s, 64 streams | 19200 | 7680 (peer Q8) | 2.50 (2.50 to 2.50) |
| time to first token p50, 8 streams, ms | 160 | 320 (peer Q4) | 0.50 (0.50 to 0.50) |
| time to first token p50, 32 streams, ms | 640 | 1280 (peer Q4) | 0.50 (0.50 to 0.50) |
| output tokens/s, 8 streams, shared prefix | 2656 | 1216 (peer Q8) | 2.18 (2.18 to 2.18) |
| time per token after 4,000 words, 1 stream, ms | 2 | 2 (peer Q4) | 1.00 (1.00 to 1.00) |
| time to first token after 4,000 words, 1 stream, ms | 20 | 40 (peer Q4) | 0.50 (0.50 to 0.50) |
| prefill of 512 tokens, tokens/s | 3000 | 1500 (peer-bench Q8) | 2.00 (2.00 to 2.00) |
| prefill of 4096 tokens, tokens/s | 3000 | 1500 (peer-bench Q8) | 2.00 (2.00 to 2.00) |
| the same file, output tokens/s, 1 stream | 300 | 100 (peer Q4) | 3.00 (3.00 to 3.00) |
| the same file, output tokens/s, 8 streams | 2400 | 800 (peer Q4) | 3.00 (3.00 to 3.00) |
| the same file, output tokens/s, 32 streams | 9600 | 3200 (peer Q4) | 3.00 (3.00 to 3.00) |
| output tokens/s, 32 streams over HTTP, against in process | 9600 | 6900 (rival Q8) | 1.39 (1.39 to 1.39) |
| output tokens/s, 64 streams over HTTP, against in process | 19200 | 6900 (rival Q8) | 2.78 (2.78 to 2.78) |
| time per token through HTTP, 1 stream, ms | 3.3 | 3 (bare step) | 1.10 (1.10 to 1.10) |
"""


@pytest.fixture
def peers(tmp_path):
    path = tmp_path / "peers.toml"
    path.write_text(PEERS, encoding="utf-8")
    return path


def values(**by_source):
    return {source.replace("_", "."): by_who for source, by_who in by_source.items()}


@pytest.mark.spec("BENCH-40")
def test_the_best_format_of_the_peer_counts_in_each_row():
    found = findings(
        values(
            c8_out={OURS: [30, 30, 30], "a": [10, 10, 10], "b": [11, 1, 12]},
            c8_first={OURS: [30], "a": [10], "b": [12]},
        ),
        (),
    )
    assert [finding.peer for finding in found] == ["b", "a"]
    assert (found[0].ratio.low, found[0].ratio.high) == (2.5, 30)


@pytest.mark.spec("BENCH-43")
def test_the_same_file_is_compared_only_with_itself():
    measured = values(c1_out={OURS: [30], "a": [10], "b": [20]})
    assert [(f.row.same_file, f.peer) for f in findings(measured, ["a"])] == [(False, "b"), (True, "a")]
    assert len(findings(measured, [])) == 1


@pytest.mark.spec("BENCH-41")
def test_a_row_with_a_missing_side_is_left_out():
    assert findings(values(c1_out={OURS: [1]}), []) == []


@pytest.mark.spec("BENCH-40")
def test_the_command_measures_everything_in_turn_and_prints_the_table(peers, capsys, tmp_path):
    output = tmp_path / "table.json"
    arguments = ["--peers", str(peers), "--load-generator", LOAD, "--repeat", "2", "--output", str(output)]
    assert main(["table", *arguments]) == 0
    assert capsys.readouterr().out == TABLE
    report = json.loads(output.read_text(encoding="utf-8"))
    assert report["schema"] == "tlserve.bench.table/3"
    assert [row["peer"] for row in report["rows"]].count("peer Q8") == 5
    assert {len(measured["values"]) for measured in report["measured"]} == {2}


@pytest.mark.spec("BENCH-41")
def test_a_single_part_is_measured_with_our_own_generator(tmp_path, capsys):
    peers = tmp_path / "peers.toml"
    peers.write_text(
        '[ours]\narguments = ["--model", "succ"]\n[[server]]\nname = "succ"\n'
        f'command = "{sys.executable} -m tlserve serve --model succ --port {{port}} --health-port 0"\n'
        'ready = "http://127.0.0.1:{port}/v1/models"\n',
        encoding="utf-8",
    )
    sizes = ["--only", "c1", "--repeat", "1", "--rounds", "1", "--output-tokens", "4"]
    assert main(["table", "--peers", str(peers), *sizes]) == 0
    shown = capsys.readouterr().out
    assert "| output tokens/s, 1 stream |" in shown
    assert "(succ)" in shown
    assert "Not measured: output tokens/s, 8 streams; " in shown


@pytest.mark.spec("BENCH-42")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[server]]\nname = 'a'\ncommand = 'x'\nready = 'y'\nport = 3", "unknown: server.port"),
        ("[severs]", "unknown: severs"),
        ("[[prefill]]\nname = 'a'", "command"),
        ("[ours]\narguments = 'x'", "ours.arguments"),
        ("[ours", "line 1"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path, text, said):
    path = tmp_path / "peers.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OperatorError, match=said):
        read_peers(path)


@pytest.mark.spec("BENCH-42")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (" server {format} {port}", " fail", "ended before it was ready: the model is not there"),
        (" server {format} {port}", " server {size} {port}", "placeholder without a value"),
        (" prefill {format} {tokens}", " fail", "ended with code 3: the model is not there"),
        (" prefill {format} {tokens}", " load Q4 1 0", "printed no rate of 512 tokens"),
        (" in-process {format} {streams}", " load Q4 1 0", "printed no tokens/s"),
    ],
)
def test_a_peer_that_behaves_unexpectedly_ends_the_run_in_one_line(peers, capsys, old, new, said):
    assert old in PEERS
    peers.write_text(PEERS.replace(old, new), encoding="utf-8")
    only = "in_process,prefill"
    arguments = ["--peers", str(peers), "--load-generator", LOAD, "--repeat", "1", "--only", only]
    assert main(["table", *arguments]) != 0
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in error


@pytest.mark.spec("BENCH-42")
@pytest.mark.parametrize("command", [f"{SCRIPT} load Q4 1 {{what}}", f"{SCRIPT} in-process Q4 1", "no-such-command"])
def test_a_load_generator_that_behaves_unexpectedly_is_one_line(peers, capsys, command):
    assert main(["table", "--peers", str(peers), "--load-generator", command, "--only", "c1"]) != 0
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert any(said in error for said in ("placeholder without a value", "did not print its figures", "cannot be run"))


def test_the_file_in_the_documentation_is_valid(tmp_path):
    page = (CHECKOUT / "tests/benchmarks/README.md").read_text(encoding="utf-8")
    (text,) = (block.text for block in blocks(page) if block.file == "peers.toml")
    path = tmp_path / "peers.toml"
    path.write_text(text, encoding="utf-8")
    peers = read_peers(path)
    assert "Q4_1" in peers.server[0].formats
    assert peers.server[0].words("Q4_1", port=7)[2] == "Q4_1.gguf"
    assert peers.same_files == {"llama.cpp Q4_1"}


def test_every_field_of_the_json_of_the_table_is_explained(peers, capsys):
    page = (CHECKOUT / "tests/benchmarks/README.md").read_text(encoding="utf-8")
    arguments = ["--peers", str(peers), "--load-generator", LOAD, "--only", "c1", "--repeat", "1", "--json"]
    assert main(["table", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {key for key in keys_of(report) if f"`{key}`" not in page} == set()


def keys_of(value):
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in keys_of(inner)}
    return {key for inner in value for key in keys_of(inner)} if isinstance(value, list) else set()


def test_without_peers_the_command_says_what_it_needs(capsys):
    with pytest.raises(SystemExit):
        main(["table"])
    assert "--peers" in capsys.readouterr().err


def test_every_part_can_be_chosen_and_no_other(capsys):
    assert PARTS == ("c1", "c8", "c32", "c64", "shared", "long", "prefill", "in_process", "step")
    with pytest.raises(SystemExit):
        main(["table", "--only", "c2"])


def test_the_last_number_is_the_rate_where_no_pattern_is_given():
    assert tokens_per_s(InProcessPeer(name="a", command="x"), "n=32: 812.5 tokens/s\n") == 812.5
    assert prefill_rate(PrefillPeer(name="a", command="x"), '[{"n_prompt":5,"n_gen":0,"avg_ts":7}]', 5) == 7
    assert ServerPeer(name="a", command="x", ready="y").label("") == "a"
