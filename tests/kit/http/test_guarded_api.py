"""The guarded API answers with its key, refuses without it, and keeps its log records."""

from tests.kit.http.guarded_api import guarded


async def test_only_the_key_gives_access() -> None:
    async with guarded() as api:
        assert (await api.chat()).status == 200
        assert (await api.ask("GET", "/v1/models")).status == 401
        assert [record.status for record in api.records] == [200, 401]
        assert len(api.backend.requests) == 1
