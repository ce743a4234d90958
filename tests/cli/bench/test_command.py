"""`tlserve bench` as a user runs it, on the built-in model: tables, JSON, plot, peers, refusals."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.kit.http.certificates import Certificates
from tests.kit.source_tree import CHECKOUT
from tlserve.cli.entry import main
from tlserve.testing import serve_in_thread

SMALL = ["--rounds", "1", "--output-tokens", "4", "--prompt-words", "4"]
OWN = ["bench", "--model", "succ", "--prefill-words", "4", *SMALL]


def measure(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_measures_its_own_server(capsys):
    report = measure(capsys, *OWN, "--streams", "1,2")
    assert report["schema"] == "tlserve.bench.load/1"
    assert [run["streams"] for run in report["runs"]] == [1, 2]
    for run in report["runs"]:
        assert run["errors"] == {}
        assert run["output_tokens"] == 4 * run["requests"]
        assert run["prefill_tokens_per_s"] > 0
        assert 0 <= run["outside_forward"] <= 1
    assert report["ratios"] == []


def test_an_open_loop_counts_its_arrivals(capsys):
    report = measure(capsys, *OWN, "--rate", "200,400", "--requests", "5")
    assert [(run["rate"], run["requests"], run["answered"]) for run in report["runs"]] == [(200, 5, 5), (400, 5, 5)]


@pytest.mark.spec("BENCH-3", "BENCH-21")
def test_a_peer_is_measured_in_turn_with_the_same_prompts(capsys, tmp_path):
    plot = tmp_path / "plot.svg"
    with serve_in_thread("succ") as ours, serve_in_thread("succ") as theirs:
        report = measure(
            capsys,
            *("bench", "--url", ours.base_url, "--peer", theirs.base_url, "--names", "ours,theirs"),
            *("--streams", "1,2", "--repeat", "2", "--plot", str(plot), *SMALL),
        )
    order = [(run["target"], run["streams"], run["repeat"]) for run in report["runs"]]
    assert order == [(name, streams, repeat) for repeat in (0, 1) for streams in (1, 2) for name in ("ours", "theirs")]
    assert [target["model"] for target in report["targets"]] == ["succ", "succ"]
    for ours_run, theirs_run in zip(report["runs"][::2], report["runs"][1::2], strict=True):
        assert ours_run["prompt_tokens"] == theirs_run["prompt_tokens"]
    assert {ratio["measure"] for ratio in report["ratios"]} >= {"output_tokens_per_s", "first_token_p50_ms"}
    assert all(ratio["low"] <= ratio["high"] for ratio in report["ratios"])
    ET.parse(plot)


def test_prompts_have_exact_lengths_if_the_server_counts_tokens(capsys):
    by_tokens = measure(capsys, *OWN, "--streams", "1", "--rounds", "2", "--prompt-tokens", "50")
    more = measure(capsys, *OWN, "--streams", "1", "--rounds", "2", "--prompt-tokens", "60")
    assert more["runs"][0]["prompt_tokens"] - by_tokens["runs"][0]["prompt_tokens"] == 2 * 10


def test_the_tables_name_servers_loads_and_ratios(capsys):
    with serve_in_thread("succ") as peer:
        assert main([*OWN, "--streams", "1", "--peer", peer.base_url]) == 0
    shown = capsys.readouterr().out
    assert all(said in shown for said in ("1 clients", "tlserve", "peer", "output_tokens_per_s", "of medians"))


def test_a_missing_server_is_reported_in_one_line(capsys):
    assert main(["bench", "--url", "http://127.0.0.1:1"]) != 0
    error = capsys.readouterr().err.strip()
    assert "http://127.0.0.1:1 does not answer" in error
    assert len(error.splitlines()) == 1


@pytest.mark.spec("BENCH-14")
def test_a_server_with_tls_and_keys_is_measured(capsys, tmp_path, monkeypatch):
    key, made, ca, file = "a-key-for-this-test-only-23", Certificates(tmp_path), tmp_path / "ca.pem", tmp_path / "key"
    made.authority.cert_pem.write_to_path(str(ca))
    file.write_text(f"{key}\n")
    tls = {"tls.certificate": str(made.certificate), "tls.key": str(made.key), "access.api_key": key}
    with serve_in_thread("succ", settings=tls) as server:
        url = f"https://{server.address}"
        once = ("bench", "--url", url, "--streams", "1", *SMALL)
        trusting = (*once, "--ca", str(ca))
        assert measure(capsys, *trusting, "--api-key-file", str(file))["targets"][0]["url"] == url
        assert main([*once]) == 10
        assert "the server's certificate is not trusted: unable to" in capsys.readouterr().err
        assert main([*trusting]) == 10
        assert "requires a key (401): set TL_API_KEY" in capsys.readouterr().err
        monkeypatch.setenv("TL_API_KEY", key)
        monkeypatch.setenv("TL_PEER_API_KEY", key)
        assert measure(capsys, *trusting, "--peer", url)["runs"][1]["errors"] == {}
        monkeypatch.setenv("TL_PEER_API_KEY", "another-key-than-that-23")
        assert main([*trusting, "--peer", url]) == 10
        assert "does not accept the given key (401)" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"\n", b"two words\n", b"two\nlines\n", b"\xff\n"])
def test_a_file_that_is_not_a_key_is_refused(content, capsys, tmp_path):
    (tmp_path / "key").write_bytes(content)
    assert main(["bench", "--url", "http://127.0.0.1:1", "--api-key-file", str(tmp_path / "key")]) == 10
    assert "is not a key: write one line" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--streams", "0"], ["--streams", "x"], ["--rate", "-1"], ["--names", "a"]])
def test_arguments_that_make_no_sense_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        main(["bench", *arguments])
    assert "argument" in capsys.readouterr().err


def keys_of(value):
    """Return every key at any depth; those of `errors` are kinds, not fields."""
    if isinstance(value, dict):
        return set(value) | {key for name, inner in value.items() if name != "errors" for key in keys_of(inner)}
    return {key for inner in value for key in keys_of(inner)} if isinstance(value, list) else set()


@pytest.mark.spec("BENCH-22")
def test_every_field_of_the_json_is_explained(capsys):
    page = Path(CHECKOUT / "docs/how-to/measure.md").read_text(encoding="utf-8")
    with serve_in_thread("succ") as peer:
        reports = [
            measure(capsys, *OWN, "--streams", "1", "--peer", peer.base_url),
            measure(capsys, *OWN, "--rate", "100", "--requests", "1"),
        ]
    assert {key for report in reports for key in keys_of(report) if f"`{key}`" not in page} == set()
