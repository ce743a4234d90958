"""The nodes of a fleet, from a list and from the DNS, in virtual time."""

import pytest
import trio

from tlserve.fleet.http.dns_directory import DnsDirectory, resolve_host
from tlserve.fleet.http.link import HttpLink
from tlserve.fleet.http.static_directory import StaticDirectory
from tlserve.fleet.link import NodeGone, NodeLost, NodeUp


class Names:
    """A name server: `known` has the addresses of each host, None if it does not answer."""

    def __init__(self, **known):
        self.known = known

    async def resolve(self, host, port):
        addresses = self.known[host]
        if addresses is None:
            await trio.sleep_forever()
        if not addresses:
            raise OSError("no such name")
        return frozenset(addresses)


async def nobody():
    raise ConnectionRefusedError("nothing listens")


def make_link(url, host=""):
    return HttpLink(url, server_name=host, open_stream=nobody)


def by_names(names, *urls):
    return DnsDirectory(urls or ["http://nodes:8000"], make_link, resolve=names.resolve)


class Watch:
    """A directory that is read continuously."""

    def __init__(self, directory, nursery):
        self.seen = []
        nursery.start_soon(self._read, directory)

    async def _read(self, directory):
        async for change in directory.changes():
            self.seen.append(change)

    async def after(self, seconds):
        """Return what changed in the next seconds, as (class, node)."""
        before = len(self.seen)
        await trio.sleep(seconds)
        return [(type(change), change.node) for change in self.seen[before:]]


@pytest.mark.spec("DIR-1")
async def test_a_list_names_each_node_once_and_never_changes(autojump_clock):
    directory = StaticDirectory(["http://a:1", "http://b:2/", "http://a:1"], make_link)
    async with trio.open_nursery() as nursery:
        watch = Watch(directory, nursery)
        assert await watch.after(1000) == [(NodeUp, "http://a:1"), (NodeUp, "http://b:2")]
        nursery.cancel_scope.cancel()
    await directory.aclose()


def test_a_wrong_address_is_refused_when_the_directory_is_made():
    with pytest.raises(ValueError, match="is not an address like"):
        StaticDirectory(["a:1"], make_link)
    with pytest.raises(ValueError, match="is not an address like"):
        DnsDirectory(["a:1"], make_link)


@pytest.mark.spec("DIR-2")
async def test_every_address_of_a_name_is_a_node_and_new_ones_are_seen_in_a_second(autojump_clock):
    names = Names(nodes=["10.0.0.1", "fd00::2"])
    async with trio.open_nursery() as nursery:
        watch = Watch(by_names(names), nursery)
        assert await watch.after(0.1) == [(NodeUp, "http://10.0.0.1:8000"), (NodeUp, "http://[fd00::2]:8000")]
        names.known["nodes"] = ["10.0.0.3", "10.0.0.1", "fd00::2"]
        assert await watch.after(1) == [(NodeUp, "http://10.0.0.3:8000")]
        nursery.cancel_scope.cancel()


@pytest.mark.spec("DIR-4")
async def test_an_address_that_is_no_longer_listed_stays_until_its_link_fails(autojump_clock):
    names = Names(nodes=["10.0.0.1", "10.0.0.2"])
    async with trio.open_nursery() as nursery:
        watch = Watch(by_names(names), nursery)
        await watch.after(1.5)
        names.known["nodes"] = ["10.0.0.2"]
        assert await watch.after(60) == []
        with pytest.raises(NodeLost):
            await watch.seen[0].link.hello()
        assert await watch.after(1) == [(NodeGone, "http://10.0.0.1:8000")]
        names.known["nodes"] = ["10.0.0.1", "10.0.0.2"]
        assert await watch.after(1) == [(NodeUp, "http://10.0.0.1:8000")]
        assert watch.seen[-1].link is not watch.seen[0].link
        nursery.cancel_scope.cancel()


@pytest.mark.spec("DIR-4")
async def test_a_link_that_fails_while_its_address_is_listed_stays(autojump_clock):
    async with trio.open_nursery() as nursery:
        watch = Watch(by_names(Names(nodes=["10.0.0.1"])), nursery)
        await watch.after(0.5)
        with pytest.raises(NodeLost):
            await watch.seen[0].link.hello()
        assert await watch.after(10) == []
        nursery.cancel_scope.cancel()


@pytest.mark.spec("DIR-3")
@pytest.mark.parametrize("nothing", [None, []], ids=["silent", "no such name"])
async def test_a_failing_name_server_ends_no_node_and_is_reported_once(autojump_clock, caplog, nothing):
    names = Names(nodes=["10.0.0.1"], others=["10.0.0.2"])
    async with trio.open_nursery() as nursery:
        watch = Watch(by_names(names, "http://nodes:8000", "http://others:8000"), nursery)
        await watch.after(0.5)
        names.known["nodes"] = nothing
        names.known["others"] = ["10.0.0.2", "10.0.0.3"]
        assert await watch.after(60) == [(NodeUp, "http://10.0.0.3:8000")]
        assert caplog.text.count("the name nodes has no nodes") == 1
        nursery.cancel_scope.cancel()


async def test_a_name_that_two_urls_have_is_one_node(autojump_clock):
    names = Names(nodes=["10.0.0.1"], others=["10.0.0.1"])
    async with trio.open_nursery() as nursery:
        watch = Watch(by_names(names, "http://nodes:8000", "http://others:8000"), nursery)
        assert await watch.after(5) == [(NodeUp, "http://10.0.0.1:8000")]
        nursery.cancel_scope.cancel()


async def test_the_machines_own_resolver_is_used():
    assert "127.0.0.1" in await resolve_host("localhost", 8000)
    with trio.fail_after(5):
        assert await resolve_host("127.0.0.7", 1) == {"127.0.0.7"}
