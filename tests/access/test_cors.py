"""Which web pages can read an answer."""

import pytest

from tlserve.access.cors import Cors
from tlserve.http.messages import Headers

APP = "https://app.example.com"
ASKED = ("Access-Control-Request-Method", "POST")


def names(fields: tuple[tuple[str, str], ...]) -> dict[str, str]:
    assert len({name for name, _ in fields}) == len(fields)
    return dict(fields)


@pytest.mark.spec("ACC-42")
def test_by_default_no_page_of_another_origin_reads_anything() -> None:
    assert Cors().headers(Headers([("Origin", APP)])) == ()
    assert Cors().preflight("OPTIONS", Headers([("Origin", APP), ASKED]), ["POST"]) is None


@pytest.mark.spec("ACC-58")
def test_an_allowed_origin_gets_the_header_and_caches_get_vary() -> None:
    fields = names(Cors((APP, "https://b.example.com")).headers(Headers([("Origin", APP)])))
    assert fields["Access-Control-Allow-Origin"] == APP
    assert "X-Request-Id" in fields["Access-Control-Expose-Headers"]
    assert fields["Vary"] == "Origin"


@pytest.mark.spec("ACC-42")
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Origin", "https://evil.example.com")],
        [("Origin", "null")],
        [("Origin", f"{APP}.evil.example.com")],
        [("Origin", APP.upper())],
        [("Origin", APP), ("Origin", "https://evil.example.com")],
    ],
)
def test_another_origin_gets_no_header(headers: list[tuple[str, str]]) -> None:
    assert names(Cors((APP,)).headers(Headers(headers))) == {"Vary": "Origin"}
    assert Cors((APP,)).preflight("OPTIONS", Headers([*headers, ASKED]), ["POST"]) is None


def test_a_star_allows_every_origin() -> None:
    fields = names(Cors(("*",)).headers(Headers([("Origin", "https://any.example.com")])))
    assert fields["Access-Control-Allow-Origin"] == "*"
    assert "Vary" not in fields


@pytest.mark.spec("ACC-59")
def test_a_preflight_gets_the_methods_of_the_path_and_the_requested_fields() -> None:
    asked = Headers([("Origin", APP), ASKED, ("Access-Control-Request-Headers", "authorization, content-type")])
    fields = Cors((APP,)).preflight("OPTIONS", asked, ["OPTIONS", "POST"])
    assert fields is not None
    assert names(fields) == {
        "Access-Control-Allow-Methods": "OPTIONS, POST",
        "Access-Control-Allow-Headers": "authorization, content-type",
        "Access-Control-Max-Age": "600",
    }


def test_a_request_that_is_not_a_preflight_for_a_path_is_not_answered_as_one() -> None:
    allowed = Headers([("Origin", APP), ASKED])
    assert Cors((APP,)).preflight("GET", allowed, ["GET"]) is None
    assert Cors((APP,)).preflight("OPTIONS", Headers([("Origin", APP)]), ["GET"]) is None
    assert Cors((APP,)).preflight("OPTIONS", allowed, []) is None


def test_fields_that_are_not_names_are_not_echoed() -> None:
    asked = Headers([("Origin", APP), ASKED, ("Access-Control-Request-Headers", "x\x80y <script>")])
    assert "Access-Control-Allow-Headers" not in names(Cors((APP,)).preflight("OPTIONS", asked, ["POST"]) or ())
