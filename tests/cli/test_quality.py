"""`tlserve quality`: a table, a document, and one line for a text that cannot be compared."""

import json

import pytest

from tests.kit.model.stored_gguf import one_kind, write_stored_gguf
from tests.kit.model.tiny_models import tiny_shape
from tlserve.cli import exit_codes, main

Q4_1 = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    shape = tiny_shape(hidden=64, intermediate=96, head_size=16)
    return write_stored_gguf(tmp_path_factory.mktemp("quality") / "tiny.gguf", shape, one_kind(Q4_1))


@pytest.mark.spec("CLI-30")
def test_the_document_has_f32_first_and_then_each_format(model, capsys):
    assert main(["quality", "--model", str(model), "--activations", "int12,int8", "--tokens", "80", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["model"] == str(model)
    rows = document["rows"]
    assert [(row["activations"], row["kv_precision"]) for row in rows] == [
        ("f32", "f32"),
        ("int12", "f16"),
        ("int8", "f16"),
    ]
    assert "int8 activations" in rows[2]["kernels"]
    exact, int12, int8 = (row["figures"] for row in rows)
    assert (exact["kl"], exact["agreement"], exact["positions"]) == (0, 1, 80)
    assert 0 < int12["kl"] < int8["kl"]


@pytest.mark.spec("CLI-30")
def test_the_table_compares_the_setting_in_effect_on_the_given_text(model, tmp_path, capsys):
    text = tmp_path / "text"
    text.write_text("words in a file " * 4)
    settings = ["--set", "activations=int8", "--set", "kv_precision=f32"]
    assert main(["quality", "--model", str(model), "--text", str(text), *settings]) == 0
    shown = capsys.readouterr().out
    assert "int8" in shown
    assert "f16" not in shown
    assert "64 positions" in shown


@pytest.mark.spec("CLI-31")
@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot read --text"), (b"caf\xe9", "is not UTF-8: byte 3"), (b"a", "the text has 1 tokens")],
)
def test_a_text_that_cannot_be_compared_is_one_line(model, tmp_path, capsys, content, said):
    text = tmp_path / "text"
    if content is not None:
        text.write_bytes(content)
    assert main(["quality", "--model", str(model), "--text", str(text)]) == 10
    assert said in capsys.readouterr().err


@pytest.mark.spec("CLI-31")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--activations", "int12,int9"], "'int9' is not one of int12, int8, f32"),
        (["--tokens", "1"], "'1' is not a number from 2 on"),
    ],
)
def test_a_wrong_argument_is_a_usage_error(capsys, wrong, said):
    with pytest.raises(SystemExit) as caught:
        main(["quality", *wrong])
    assert caught.value.code == exit_codes.USAGE
    assert said in capsys.readouterr().err
