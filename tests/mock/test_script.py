"""Scripts: what is read, and what is refused with its place."""

import json

import pytest

from tlserve.errors import SettingsError
from tlserve.mock.script import load_script, parse_script, pieces_of

ONE = {"name": "a", "user": "hello", "turn": [{"say": "hi"}]}


def refusals(*talks, **more):
    with pytest.raises(SettingsError) as refused:
        parse_script({"talk": list(talks), **more})
    return refused.value.refusals


def with_turn(**turn):
    return {"name": "a", "user": "hello", "turn": [turn]}


@pytest.mark.spec("KIT-1")
@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"talks": []}, "there is no key 'talks'; did you mean 'talk'?"),
        ({"talk": [{**ONE, "usr": "x"}]}, "there is no key 'talk[0].usr'; did you mean 'user'?"),
        ({"talk": [ONE, with_turn(says="x")]}, "there is no key 'talk[1].turn[0].says'; did you mean 'say'?"),
        (
            {"talk": [with_turn(expect={"tool": ["x"]})]},
            "there is no key 'talk[0].turn[0].expect.tool'; did you mean 'tools'?",
        ),
        (
            {"talk": [with_turn(calls=[{"nam": "x"}])]},
            "there is no key 'talk[0].turn[0].calls[0].nam'; did you mean 'name'?",
        ),
        (
            {"talk": [with_turn(error={"zzz": 1})]},
            "there is no key 'talk[0].turn[0].error.zzz'; known are status, message, code",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_its_path_and_the_nearest_key(document, said):
    with pytest.raises(SettingsError) as refused:
        parse_script(document, "s.toml")
    assert refused.value.refusals == (f"s.toml: {said}",)


@pytest.mark.spec("KIT-1")
def test_a_wrong_value_is_refused_with_its_path():
    (said,) = refusals(with_turn(first_ms="soon"))
    assert said == "script: talk[0].turn[0].first_ms: Expected `int`, got `str`"


@pytest.mark.spec("KIT-2")
@pytest.mark.parametrize(
    ("earlier", "later"),
    [("~", "hello"), ("~", "/h+/"), ("~ell", "hello"), ("~ell", "~hello"), ("hello", "hello"), ("/^h/", "hello")],
)
def test_a_talk_that_no_request_can_reach_is_refused_by_name(earlier, later):
    talks = ({**ONE, "name": "first", "user": earlier}, {**ONE, "name": "second", "user": later})
    (said,) = refusals(*talks)
    assert said == "script: the talk 'second' is never reached: 'first' before it fits the same messages; put it first"


@pytest.mark.spec("KIT-2")
@pytest.mark.parametrize(("earlier", "later"), [("hello", "~"), ("~hello", "~ell"), ("/^x/", "hello"), ("~a", "/b/")])
def test_a_talk_that_some_request_can_reach_is_kept(earlier, later):
    talks = [{**ONE, "name": "first", "user": earlier}, {**ONE, "name": "second", "user": later}]
    assert [talk.name for talk in parse_script({"talk": talks}).talk] == ["first", "second"]


@pytest.mark.spec("KIT-3")
def test_all_faults_of_the_talks_are_found_at_once():
    both = with_turn(say="x", error={"status": 500})
    said = refusals({"name": "b", "user": "/(/"}, {**both, "name": "a"}, {**ONE, "name": "a", "user": "other"})
    assert [line.partition(": ")[2] for line in said] == [
        "the talk 'b' needs either turns or answer = 'echo'",
        "b: user is no regular expression: missing ), unterminated subpattern at position 0",
        "a/1 has an error and an answer; keep one of them",
        "two talks have the name 'a'; give each its own",
    ]


def test_a_file_of_toml_and_one_of_json_are_the_same_script(tmp_path):
    toml, as_json, broken = tmp_path / "s.toml", tmp_path / "s.json", tmp_path / "b.json"
    toml.write_text('[[talk]]\nname = "a"\nuser = "hello"\n[[talk.turn]]\nsay = "hi"\n')
    as_json.write_text(json.dumps({"talk": [ONE]}))
    assert load_script(toml) == load_script(as_json) == parse_script({"talk": [ONE]})
    broken.write_text("{")
    for path, reason in ((broken, "is not JSON"), (tmp_path / "none.json", "cannot be read")):
        with pytest.raises(SettingsError, match=reason):
            load_script(path)


@pytest.mark.parametrize("text", ["", " ", "a", "two words", "  a  b\n", "a\n\nb "])
def test_a_string_is_cut_into_words_and_loses_nothing(text):
    pieces = pieces_of(text)
    assert "".join(pieces) == text
    assert all(len(piece.split()) <= 1 for piece in pieces)


def test_a_list_is_sent_as_it_is():
    assert pieces_of(["21 ", "", "degrees."]) == ("21 ", "", "degrees.")
