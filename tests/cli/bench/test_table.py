"""The tables of runs fit a terminal of 100 columns, and every number has three digits."""

import pytest

from tlserve.bench.comparison import LoadRun
from tlserve.bench.figures import Figures, Percentiles
from tlserve.bench.load import Closed
from tlserve.cli.bench.table import print_runs


def run(target, per_token_ms):
    own = target == "tlserve"
    return LoadRun(
        target=target,
        load=Closed(32),
        repeat=0,
        figures=Figures(
            requests=64,
            answered=62,
            seconds=1.0,
            prompt_tokens=1,
            output_tokens=1,
            counted=True,
            output_tokens_per_s=1024.4,
            total_tokens_per_s=1.0,
            requests_per_s=1.0,
            first_token_ms=Percentiles(p50=1428, p90=2000, p99=5000),
            per_token_ms=Percentiles(p50=per_token_ms, p90=45.1, p99=123.4),
            whole_ms=Percentiles(p50=13300, p90=1, p99=1),
            errors={"status 429": 2},
            prefill_tokens_per_s=13120.0 if own else None,
            outside_forward=0.05 if own else None,
        ),
    )


@pytest.mark.spec("BENCH-24")
def test_the_table_of_two_servers_fits_a_hundred_columns(capsys):
    print_runs([run("tlserve", 28.123), run("llama.cpp", 28.123)], ["tlserve", "llama.cpp"])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    assert "1428 2000 5000" in shown
    assert "28.1 45.1 123" in shown


@pytest.mark.parametrize(
    ("per_token_ms", "written"), [(3.406, "3.41"), (9.996, "10.0"), (45.14, "45.1"), (99.96, "100")]
)
def test_a_time_per_token_has_three_digits(capsys, per_token_ms, written):
    print_runs([run("a", per_token_ms)], ["a"])
    assert f" {written} 45.1 123 " in capsys.readouterr().out


@pytest.mark.spec("BENCH-24")
def test_a_column_without_any_value_is_left_out(capsys):
    print_runs([run("llama.cpp", 3.0)], ["llama.cpp"])
    assert "forward" not in capsys.readouterr().out
