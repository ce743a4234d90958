"""A server is replaced a few times under load, in processes of its own."""

import json

import pytest

from tests.benchmarks.__main__ import main


@pytest.mark.slow
@pytest.mark.spec("LIFE-14", "LIFE-15")
def test_no_client_notices_that_the_server_was_replaced(capsys):
    assert main(["restarts", "--count", "3", "--streams", "4", "--output-tokens", "64", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["faults"] == {}
    assert figures["restarts"] == 3
    assert min(figures["streams"], figures["kept"], figures["probes"]) > 10
