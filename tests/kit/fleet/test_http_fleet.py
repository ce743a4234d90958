"""The fleet over HTTP is a head that knows its nodes."""

from tests.kit.fleet.http_fleet import http_fleet


async def test_the_nodes_are_ready_when_the_block_begins() -> None:
    async with http_fleet(3) as head:
        assert sorted(member.node for member in head.members) == ["http://n0:80", "http://n1:80", "http://n2:80"]
        assert head.info().ready
