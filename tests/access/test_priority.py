"""Which keys may send a priority above 0."""

import pytest

from tests.kit.http.guarded_api import RIGHT, guarded
from tlserve.access.keys import global_key, parse_keys

KEY = "sk-0123456789-abcdef"


@pytest.mark.spec("ACC-65")
@pytest.mark.parametrize(("value", "status"), [("1", 403), ("100", 403), ("0", 200), ("-5", 200)])
async def test_a_key_that_is_not_marked_cannot_rise(value: str, status: int) -> None:
    async with guarded() as api:
        answer = await api.chat(RIGHT, ("X-TL-Priority", value))
        assert answer.status == status
        assert [request.priority for request in api.backend.requests] == ([int(value)] if status == 200 else [])
    assert (b"may not send X-TL-Priority above 0" in answer.body) == (status == 403)


@pytest.mark.spec("ACC-65")
async def test_a_key_that_is_marked_can() -> None:
    async with guarded(may_set_priority=True) as api:
        assert (await api.chat(RIGHT, ("X-TL-Priority", "9"))).status == 200
        assert api.backend.requests[0].priority == 9


@pytest.mark.spec("ACC-65")
def test_the_keys_file_marks_a_key_and_the_key_of_the_settings_is_marked() -> None:
    row = {"name": "a", "key": KEY}
    assert not parse_keys({"keys": [row]})[0].may_set_priority
    assert parse_keys({"keys": [{**row, "may_set_priority": True}]})[0].may_set_priority
    assert global_key(KEY).may_set_priority
