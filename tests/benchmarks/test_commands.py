"""`python -m tests.benchmarks engine|http`, on the built-in model: tables, JSON, refusals."""

import json

import pytest

from tests.benchmarks.__main__ import main
from tests.kit.model.tiny_bert import write_tiny_bert
from tests.kit.source_tree import CHECKOUT

ENGINE = "engine --model succ --prefill-tokens 8 --rows 1 --context-tokens 8 --steps 2 --repeat 1"
HTTP = "http --clients 1 --events 4 --seconds 0.1 --repeat 1"


def measure(capsys, options):
    assert main([*options.split(), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_engine_is_measured_alone_and_through_http(capsys):
    options = (
        "engine --model succ --prefill-tokens 16 --rows 1,2 --context-tokens 8 --steps 4 --repeat 1 --through-http"
    )
    report = measure(capsys, options)
    assert report["sampling"] == []
    assert report["schema"] == "tlserve.bench.engine/1"
    assert [(step["work"], step["rows"]) for step in report["steps"]] == [("prefill", 1), ("decode", 1), ("decode", 2)]
    found = report["through_http"]
    assert found["ratio"]["median"] == pytest.approx(found["http_ms"] / found["engine_ms"])


@pytest.mark.spec("BENCH-32")
def test_kinds_of_sampling_are_compared_on_request(capsys):
    report = measure(capsys, f"{ENGINE} --sampling")
    assert [cost["kind"] for cost in report["sampling"]][:2] == ["greedy", "penalties"]
    assert main([*ENGINE.split(), "--sampling"]) == 0
    assert "over greedy" in capsys.readouterr().out


def test_types_of_activations_are_compared_on_request(capsys):
    report = measure(capsys, f"{ENGINE} --activations f32,int12")
    costs = report["activations"]
    assert [(cost["activations"], cost["rows"]) for cost in costs] == [
        ("f32", 0),
        ("int12", 0),
        ("f32", 1),
        ("int12", 1),
    ]
    assert [cost["over_first"]["median"] for cost in costs[::2]] == [1, 1]
    assert main([*ENGINE.split(), "--activations", "f32,int12"]) == 0
    assert "over the first" in capsys.readouterr().out


def test_an_encoder_is_timed_in_both_precisions(capsys, tmp_path):
    model = write_tiny_bert(tmp_path)
    report = measure(capsys, f"embeddings --model {model} --words 4,8 --batch 2 --rounds 1 --calls 1")
    assert [(f["program"], f["words"], f["batch"]) for f in report["figures"]] == [
        (program, words, 2) for words in (4, 8) for program in ("tlserve", "tlserve q8_0")
    ]
    assert all(f["sentences_per_s"] == pytest.approx(2000 / f["ms"]) and f["cosine"] > 0.99 for f in report["figures"])


def test_a_peer_whose_packages_are_missing_is_named(capsys, tmp_path):
    arguments = f"embeddings --model {write_tiny_bert(tmp_path)} --peers none --python /bin/true".split()
    assert main(arguments) != 0
    assert "the peer none ended: /bin/true must have its packages" in capsys.readouterr().err


def test_the_http_layer_is_measured_alone(capsys):
    report = measure(capsys, "http --clients 2 --events 8 --seconds 0.1 --repeat 1 --ready 1,4")
    assert report["schema"] == "tlserve.bench.http/1"
    assert [run["server"] for run in report["runs"]] == ["tlserve, 1 ready together", "tlserve, 4 ready together"]


def keys_of(value):
    """Return every key at any depth."""
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in keys_of(inner)}
    return {key for inner in value for key in keys_of(inner)} if isinstance(value, list) else set()


@pytest.mark.spec("BENCH-22")
def test_every_field_of_the_json_is_explained(capsys):
    page = (CHECKOUT / "tests/benchmarks/README.md").read_text(encoding="utf-8")
    reports = [measure(capsys, f"{ENGINE} --through-http --sampling --activations f32,int8"), measure(capsys, HTTP)]
    assert {key for report in reports for key in keys_of(report) if f"`{key}`" not in page} == set()


def test_a_fault_is_one_line_and_an_exit_code(capsys):
    assert main(["engine", "--model", "succ", "--rows", "999"]) == 10
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert error[0].startswith("benchmarks: the engine computes at most ")


@pytest.mark.parametrize("options", ["", "fast", "engine --rows 0", "http --beside x", "table", "fleet --parts none"])
def test_arguments_that_make_no_sense_are_refused(options, capsys):
    with pytest.raises(SystemExit):
        main(options.split())
    assert "tlserve: " in capsys.readouterr().err


@pytest.mark.slow
def test_attention_is_measured_against_the_peak_and_the_bandwidth(capsys):
    page = (CHECKOUT / "tests/benchmarks/README.md").read_text(encoding="utf-8")
    options = (
        "attention --cases prefill:600,decode:300:2 --threads 1,2 --repeat 2 --heads 2 --kv-heads 1 --head-size 32"
    )
    report = measure(capsys, options)
    figures = report["figures"]
    assert [(figure["case"], figure["threads"]) for figure in figures] == [
        ("prefill:600", 1),
        ("decode:300:2", 1),
        ("prefill:600", 2),
        ("decode:300:2", 2),
    ]
    assert all(0 < figure["gflops"] < figure["peak_gflops"] for figure in figures)
    assert [bool(figure["gbs"]) for figure in figures] == [False, True, False, True]
    assert {key for key in keys_of(figures) if f"`{key}`" not in page} == set()


@pytest.mark.slow
def test_hostile_schemas_and_their_streams_are_measured(capsys):
    report = measure(capsys, "hostile --model succ --count 3 --streams 1 --warm-s 0.5")
    assert report["schema"] == "tlserve.bench.hostile/1"
    assert [sent["kind"] for sent in report["sent"]] == ["optional", "counted", "multiple"]
    # Schemas are compiled at the lowest priority: while other tests use the cores, a schema may not get its turn.
    assert {sent["status"] for sent in report["sent"]} <= {200, 400, 429}
    assert report["worst_cpu_s"] >= 0  # in ticks of the kernel: nothing where the machine is fast
    assert report["p99_ratio"] == pytest.approx(report["hostile_p99_ms"] / report["quiet_p99_ms"])
