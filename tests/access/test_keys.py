"""The key file's form, and finding a key."""

import datetime
import hashlib
import hmac

import pytest
import tomli

from tlserve.access.keys import GLOBAL_NAME, ApiKey, KeyRing, Limits, digest_of, global_key, join_keys, parse_keys
from tlserve.errors import SettingsError

KEY = "sk-0123456789-abcdef"
OTHER = "sk-fedcba-9876543210"

FILE = f"""
[[keys]]
name = "ci"
key = "{KEY}"

[[keys]]
name = "team-a"
sha256 = "{hashlib.sha256(OTHER.encode()).hexdigest().upper()}"
expires = 2030-01-31T12:00:00+02:00
requests_per_minute = 60
tokens_per_minute = 100_000
concurrent_streams = 4
disabled = true
"""


def parsed(text: str) -> tuple[ApiKey, ...]:
    return parse_keys(tomli.loads(text))


def refusals(text: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        parsed(text)
    return caught.value.refusals


def test_a_file_names_keys_and_their_limits() -> None:
    ci, team = parsed(FILE)
    assert ci == ApiKey(name="ci", digest=digest_of(KEY))
    assert team == ApiKey(
        name="team-a",
        digest=digest_of(OTHER),
        expires_s=datetime.datetime(2030, 1, 31, 10, tzinfo=datetime.UTC).timestamp(),
        disabled=True,
        limits=Limits(requests_per_minute=60, tokens_per_minute=100_000, concurrent_streams=4),
    )


def test_a_date_without_a_time_is_its_first_moment_in_utc() -> None:
    (key,) = parsed(f'[[keys]]\nname = "a"\nkey = "{KEY}"\nexpires = 2030-01-31\n')
    assert key.expires_s == datetime.datetime(2030, 1, 31, tzinfo=datetime.UTC).timestamp()


def row(**fields: str) -> str:
    given = {"name": '"a"', "key": f'"{KEY}"', **fields}
    return "[[keys]]\n" + "".join(f"{name} = {value}\n" for name, value in given.items() if value)


@pytest.mark.spec("ACC-6", "ACC-8", "ACC-47")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file has no key"),
        ("keys = 3\n", "must be a list of tables"),
        ('keys = ["a"]\n', "must be a list of tables"),
        ('[[key]]\nname = "a"\n', "unknown table 'key'"),
        (row(name=""), "name must be"),
        (row(name='"two words"'), "name must be"),
        (row(name=f'"{GLOBAL_NAME}"'), "name must be"),
        (row(name='"' + "a" * 65 + '"'), "name must be"),
        (row(key=""), "either key or sha256"),
        (row(sha256='"' + "0" * 64 + '"'), "either key or sha256"),
        (row(key="", sha256='"abc"'), "64 hexadecimal digits"),
        (row(key="7"), "key must be a text"),
        (row(key='"short"'), "too weak"),
        (row(key='""'), "is empty"),
        (row(key='"with a space, and long"'), "visible ASCII"),
        (row(expires='"2030-01-31"'), "without quotes"),
        (row(expires="2030-01-31T12:00:00"), "date and time with zone"),
        (row(disabled="1"), "disabled must be true or false"),
        (row(requests_per_minute="0"), "requests_per_minute must be a whole number"),
        (row(tokens_per_minute="-1"), "tokens_per_minute must be a whole number"),
        (row(concurrent_streams="true"), "concurrent_streams must be a whole number"),
        (row(request_per_minute="5"), "there is no setting 'request_per_minute'"),
        (row() + row(key=f'"{OTHER}"'), "two keys have the name 'a'"),
        (row() + row(name='"b"'), "'a', 'b' have the same key"),
    ],
)
def test_a_refusal_of_a_keys_file_gives_the_fault_and_quotes_no_key(text: str, words: str) -> None:
    lines = refusals(text)
    assert any(words in line for line in lines)
    assert not any(secret in line for line in lines for secret in (KEY, OTHER, "short", "long"))


@pytest.mark.spec("ACC-8")
def test_all_faults_are_listed_at_once() -> None:
    assert len(refusals(row(name="3", expires="1", disabled="1") + "\n[other]\n")) == 4


def test_only_the_exact_key_is_found() -> None:
    ring = KeyRing(parsed(FILE))
    assert [key.name for key in map(ring.find, (KEY, OTHER)) if key] == ["ci", "team-a"]
    for wrong in ("", KEY[:-1], KEY + "x", KEY.upper(), digest_of(KEY).hex(), "\udcff", "é" * 100_000):
        assert ring.find(wrong.encode("utf-8", "replace").decode("utf-8", "replace")) is None


@pytest.mark.spec("ACC-5")
def test_every_key_is_compared_wherever_the_right_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = KeyRing(ApiKey(name=f"k{number}", digest=digest_of(f"key {number}")) for number in range(50))
    compared: list[bytes] = []
    really_compare = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return really_compare(one, other)

    monkeypatch.setattr("tlserve.access.keys.hmac.compare_digest", compare)
    for presented, expected in (("key 0", "k0"), ("key 49", "k49"), ("no key", None)):
        compared.clear()
        found = ring.find(presented)
        assert (found and found.name) == expected
        assert compared == [key.digest for key in ring.keys]


@pytest.mark.spec("ACC-6")
def test_no_representation_contains_a_key() -> None:
    assert KEY not in repr(parsed(FILE))
    assert digest_of(KEY).hex() not in repr(parsed(FILE))
    assert repr(digest_of(KEY)) not in repr(parsed(FILE))


def test_the_key_of_the_settings_is_added_to_those_of_the_file() -> None:
    ring = join_keys(parsed(row()), global_key(OTHER))
    assert [key.name for key in ring.keys] == ["a", GLOBAL_NAME]
    assert [key.name for key in join_keys((), global_key(OTHER)).keys] == [GLOBAL_NAME]


def test_the_key_of_the_settings_can_also_be_in_the_file_without_limits() -> None:
    assert [key.name for key in join_keys(parsed(row()), global_key(KEY)).keys] == ["a"]


@pytest.mark.spec("ACC-48")
@pytest.mark.parametrize("limit", [{"requests_per_minute": "5"}, {"expires": "2030-01-31"}, {"disabled": "true"}])
def test_the_key_of_the_settings_with_limits_in_the_file_is_refused(limit: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="the key 'a' of the keys file") as caught:
        join_keys(parsed(row(**limit)), global_key(KEY))
    assert KEY not in str(caught.value)
