"""The access decision about a request, at times that the test chooses."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.http.guarded_api import open_streams
from tlserve.access.addresses import AddressLimits, tenant_of
from tlserve.access.door import Door, Entry, Knock
from tlserve.access.keys import ApiKey, KeyRing, Limits, digest_of
from tlserve.access.rate_limits import spell_duration
from tlserve.errors import ClientError
from tlserve.http.messages import Headers, HttpFault
from tlserve.http.sockets.peers import address_of

KEY = "sk-0123456789-abcdef"
PUBLIC = "GET /healthz"


def door(limits: Limits | None = None, **key: Any) -> Door:
    return Door(KeyRing([ApiKey(name="ci", digest=digest_of(KEY), limits=limits or Limits(), **key)]), public=[PUBLIC])


def knock(
    authorization: str | None = f"Bearer {KEY}",
    *,
    now_s: float = 1000.0,
    route: str = "POST /v1/x",
    generates: bool = True,
    peer: str = "192.0.2.1:5000",
    wall_s: float = 0.0,
    headers: Headers | None = None,
) -> Knock:
    fields = Headers() if authorization is None else Headers([("Authorization", authorization)])
    return Knock(
        route=route,
        generates=generates,
        headers=fields if headers is None else headers,
        peer=peer,
        now_s=now_s,
        wall_s=wall_s,
    )


def refused(at: Door, asked: Knock) -> HttpFault:
    with pytest.raises(HttpFault) as caught:
        at.enter(asked)
    return caught.value


def field(fault: HttpFault, name: str) -> str | None:
    return Headers(fault.headers).get(name)


# --- keys


@pytest.mark.spec("ACC-3")
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  ", " Bearer"])
def test_a_key_is_accepted_with_the_scheme_in_any_case(scheme: str) -> None:
    assert door().enter(knock(f"{scheme} {KEY} ")).key_name == "ci"


@pytest.mark.spec("ACC-45", "ACC-4")
@pytest.mark.parametrize(
    ("headers", "error"),
    [
        (Headers(), False),
        (Headers([("Authorization", "Bearer")]), False),
        (Headers([("Authorization", "Bearer ")]), False),
        (Headers([("Authorization", KEY)]), False),
        (Headers([("Authorization", f"Basic {KEY}")]), False),
        (Headers([("Authorization", f"Bearer{KEY}")]), False),
        (Headers([("X-Api-Key", "")]), False),
        (Headers([("X-Api-Key", "wrong")]), True),
        (Headers([("X-Api-Key", KEY), ("X-Api-Key", KEY)]), False),
        (Headers([("X-Api-Key", KEY), ("Authorization", "Bearer wrong")]), False),
        (Headers([("X-Api-Key", KEY), ("Authorization", f"Basic {KEY}")]), False),
        (Headers([("Proxy-Authorization", f"Bearer {KEY}")]), False),
        (Headers([("Authorization", f"Bearer {KEY}"), ("Authorization", f"Bearer {KEY}")]), False),
        (Headers([("Authorization", "Bearer wrong"), ("authorization", f"Bearer {KEY}")]), False),
        (Headers([("Authorization", f"Bearer wrong, Bearer {KEY}")]), True),
        (Headers([("Authorization", f"Bearer {KEY}x")]), True),
        (Headers([("Authorization", f"Bearer {KEY.upper()}")]), True),
        (Headers([("Authorization", "Bearer \xff")]), True),
    ],
)
def test_a_missing_or_wrong_key_is_401_and_the_challenge_says_which(headers: Headers, error: bool) -> None:
    fault = refused(door(), knock(headers=headers))
    challenge = field(fault, "www-authenticate")
    assert (fault.status, challenge) == (401, 'Bearer realm="tlserve"' + (', error="invalid_token"' if error else ""))
    assert KEY not in fault.message


@pytest.mark.spec("ACC-66")
@pytest.mark.parametrize("more", [(), (("Authorization", f"Bearer {KEY}"),)])
def test_a_key_can_be_in_a_field_of_its_own(more: tuple[tuple[str, str], ...]) -> None:
    assert door().enter(knock(headers=Headers([("X-Api-Key", KEY), *more]))).key_name == "ci"


@pytest.mark.spec("ACC-46")
def test_a_key_is_403_from_the_moment_it_expires() -> None:
    until = door(expires_s=500.0)
    until.enter(knock(wall_s=499.9))
    assert refused(until, knock(wall_s=500.0)).status == 403


@pytest.mark.spec("ACC-46")
def test_a_disabled_key_is_403() -> None:
    assert refused(door(disabled=True), knock()).status == 403


@pytest.mark.spec("ACC-44")
def test_a_public_route_needs_no_key_and_no_other_row_is_public() -> None:
    assert door().enter(knock(None, route=PUBLIC)).key_name is None
    for route in ("", "POST /healthz", "GET /v1/models", "GET /metrics"):
        assert refused(door(), knock(None, route=route)).status == 401


def test_without_keys_every_request_is_accepted() -> None:
    assert Door().enter(knock(None, route="")).key_name is None


@pytest.mark.spec("ACC-49")
def test_replaced_keys_apply_at_once_and_a_name_keeps_its_usage() -> None:
    limits = Limits(requests_per_minute=2)
    at = door(limits)
    at.enter(knock())
    other = "sk-fedcba-9876543210"
    at.replace_keys(KeyRing([ApiKey(name="ci", digest=digest_of(other), limits=limits)]))
    assert refused(at, knock()).status == 401
    at.enter(knock(f"Bearer {other}"))
    assert refused(at, knock(f"Bearer {other}")).status == 429


# --- requests per minute


@pytest.mark.spec("ACC-20")
def test_requests_above_the_limit_get_429_with_retry_after_and_do_not_count() -> None:
    at = door(Limits(requests_per_minute=3))
    for now_s in (1000.0, 1010.0, 1020.0):
        at.enter(knock(now_s=now_s))
    for _ in range(5):
        fault = refused(at, knock(now_s=1030.0))
        assert (fault.status, field(fault, "retry-after")) == (429, "31")
    at.enter(knock(now_s=1061.0))
    assert refused(at, knock(now_s=1061.0)).status == 429


@pytest.mark.spec("ACC-24")
def test_the_headers_give_the_limit_the_rest_and_the_time_of_the_reset() -> None:
    entry = door(Limits(requests_per_minute=3, tokens_per_minute=100)).enter(knock(now_s=1000.0))
    entry.reserve(40, 1000.0)
    assert entry.headers(1005.0) == (
        ("X-RateLimit-Limit-Requests", "3"),
        ("X-RateLimit-Remaining-Requests", "2"),
        ("X-RateLimit-Reset-Requests", "56s"),
        ("X-RateLimit-Limit-Tokens", "100"),
        ("X-RateLimit-Remaining-Tokens", "60"),
        ("X-RateLimit-Reset-Tokens", "56s"),
    )


def test_a_key_without_limits_has_no_headers() -> None:
    assert door().enter(knock()).headers(1000.0) == ()


@pytest.mark.parametrize(
    ("duration_s", "text"), [(0.0, "0s"), (0.1, "1s"), (59.5, "1m0s"), (60.5, "1m1s"), (7.0, "7s")]
)
def test_a_duration_is_written_as_the_public_api_writes_it(duration_s: float, text: str) -> None:
    assert spell_duration(duration_s) == text


# --- tokens per minute


@pytest.mark.spec("ACC-21", "ACC-51")
def test_tokens_are_reserved_and_then_counted_as_used() -> None:
    at = door(Limits(tokens_per_minute=100))
    first = at.enter(knock())
    first.reserve(80, 1000.0)
    second = at.enter(knock())
    with pytest.raises(HttpFault) as caught:
        second.reserve(30, 1000.0)
    assert caught.value.status == 429
    first.leave(20, 1001.0)
    second.reserve(30, 1001.0)
    second.leave(30, 1002.0)
    assert Headers(at.enter(knock(now_s=1003.0)).headers(1003.0)).get("x-ratelimit-remaining-tokens") == "50"


@pytest.mark.spec("ACC-52")
def test_tokens_above_the_reservation_count_and_give_429_before_the_body() -> None:
    at = door(Limits(tokens_per_minute=100))
    entry = at.enter(knock())
    entry.reserve(10, 1000.0)
    entry.leave(150, 1030.0)
    fault = refused(at, knock(now_s=1040.0))
    assert (fault.status, field(fault, "retry-after")) == (429, "51")
    at.enter(knock(now_s=1091.0))


@pytest.mark.spec("ACC-51")
def test_a_request_that_never_ran_costs_no_tokens() -> None:
    at = door(Limits(tokens_per_minute=100))
    entry = at.enter(knock())
    entry.reserve(100, 1000.0)
    entry.leave(0, 1000.0)
    at.enter(knock()).reserve(100, 1000.0)


@pytest.mark.spec("ACC-53")
def test_a_request_larger_than_the_limit_is_400_with_both_numbers() -> None:
    with pytest.raises(ClientError, match=r"101 tokens .* 100 per minute"):
        door(Limits(tokens_per_minute=100)).enter(knock()).reserve(101, 1000.0)


# --- permits


def test_a_permit_is_freed_once_even_if_its_request_leaves_twice() -> None:
    at = door(Limits(concurrent_streams=2))
    first, _second = at.enter(knock()), at.enter(knock())
    fault = refused(at, knock())
    assert (fault.status, field(fault, "retry-after")) == (429, "1")
    at.enter(knock(generates=False))
    first.leave(0, 1000.0)
    first.leave(0, 1000.0)
    at.enter(knock())
    assert refused(at, knock()).status == 429


@pytest.mark.spec("ACC-22")
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 30)), max_size=80))
def test_permits_never_leak_and_never_exceed_the_limit(steps: list[tuple[bool, int, int]]) -> None:
    at = door(Limits(concurrent_streams=3, requests_per_minute=20, tokens_per_minute=100))
    now_s = 1000.0
    inside: list[Entry] = []
    for enters, number, passed_s in steps:
        now_s += passed_s
        if enters:
            with contextlib.suppress(HttpFault):
                inside.append(at.enter(knock(now_s=now_s, generates=True)))
                inside[-1].reserve(number * 10, now_s)
        elif inside:
            inside.pop(number % len(inside)).leave(number * 20, now_s)
        assert open_streams(at) == ({"ci": len(inside)} if inside else {})
        assert len(inside) <= 3
    for entry in inside:
        entry.leave(0, now_s)
    assert open_streams(at) == {}


# --- addresses


@pytest.mark.spec("ACC-25")
def test_an_address_has_its_own_limit_and_requests_with_wrong_keys_count() -> None:
    at = Door(KeyRing(), public=[PUBLIC], addresses=AddressLimits(2))
    assert [refused(at, knock("Bearer x", peer=f"192.0.2.1:{port}")).status for port in (1, 2, 3)] == [401, 401, 429]
    assert refused(at, knock("Bearer x", peer="192.0.2.2:1")).status == 401
    at.enter(knock(None, route=PUBLIC))
    fault = refused(at, knock())
    assert field(fault, "retry-after") == "61"
    assert field(fault, "x-ratelimit-remaining-requests") == "0"


@pytest.mark.spec("ACC-25")
@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("192.0.2.7:80", "192.0.2.7"),
        ("[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:ffff::]:80", "2001:db8:1:2::/64"),
        ("[fe80::1%eth0]:80", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_address_is_an_ipv4_host_or_an_ipv6_network(peer: str, address: str) -> None:
    assert address_of(peer) == address


@pytest.mark.spec("ACC-54")
def test_the_number_of_remembered_addresses_is_bounded_oldest_forgotten_first() -> None:
    limits = AddressLimits(1, most_addresses=3)
    for host in range(100):
        limits.count(f"192.0.2.{host}:1", 1000.0)
        assert len(limits) <= 3
    with pytest.raises(HttpFault):
        limits.count("192.0.2.97:1", 1000.0)
    limits.count("192.0.2.1:1", 1000.0)  # forgotten long ago; now 98 is also forgotten, because it was seen before 97
    with pytest.raises(HttpFault):
        limits.count("192.0.2.97:1", 1000.0)
    limits.count("192.0.2.98:1", 1000.0)


@pytest.mark.spec("ACC-54")
def test_a_peer_without_an_address_is_not_limited() -> None:
    limits = AddressLimits(1)
    for _ in range(5):
        limits.count("", 1000.0)


@pytest.mark.parametrize(
    ("key", "peer", "tenant"),
    [
        ("ci", "10.0.0.7:4000", "key ci"),
        (None, "10.0.0.7:4000", "address 10.0.0.7"),
        (None, "[2001:db8::7]:4000", "address 2001:db8::/64"),
        (None, "", "address "),
    ],
)
def test_a_tenant_is_the_key_or_the_address_without_a_key(key: str | None, peer: str, tenant: str) -> None:
    assert tenant_of(key, peer) == tenant
