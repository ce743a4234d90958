"""The comparison of actors over time, with actors that are plain objects; and the wait for a foreign thread's answer."""

import logging
from concurrent.futures import Future

import pytest
import trio

from tlserve.fleet.link import NodeGone, NodeUp
from tlserve.fleet.ray.calls import wait_future
from tlserve.fleet.ray.directory import RayDirectory, Sightings


class Actor:
    """An actor that answers at the test's request."""

    def __init__(self):
        self.answer = Future()

    def ask(self, method, *arguments):
        return self

    def future(self):
        return self.answer

    def ready(self):
        self.answer.set_result(b"")
        return self


def kinds(changes):
    return [(type(change), change.node) for change in changes]


@pytest.mark.spec("RAY-4")
def test_a_node_is_up_when_its_actor_answers_for_the_first_time():
    sightings, actor = Sightings(), Actor()
    assert sightings.look({"a": actor}) == []
    actor.ready()
    assert kinds(sightings.look({"a": actor})) == [(NodeUp, "a")]
    assert sightings.look({"a": actor}) == []


@pytest.mark.spec("RAY-4")
def test_an_actor_that_is_no_longer_listed_is_gone():
    sightings, actor = Sightings(), Actor().ready()
    sightings.look({"a": actor})
    assert kinds(sightings.look({})) == [(NodeGone, "a")]
    assert sightings.look({}) == []


@pytest.mark.spec("RAY-4")
def test_another_actor_of_the_same_name_is_another_node():
    sightings = Sightings()
    sightings.look({"a": Actor().ready()})
    assert kinds(sightings.look({"a": Actor().ready()})) == [(NodeGone, "a"), (NodeUp, "a")]


@pytest.mark.spec("RAY-14")
def test_an_actor_that_fails_to_start_is_logged_once_and_never_listed(caplog):
    sightings, actor = Sightings(), Actor()
    actor.answer.set_exception(OSError("no model"))
    with caplog.at_level(logging.WARNING, "tlserve.fleet"):
        assert [sightings.look({"a": actor}), sightings.look({"a": actor}), sightings.look({})] == [[], [], []]
    assert [record.getMessage() for record in caplog.records] == ["the node a did not start: OSError"]


async def test_the_directory_looks_again_until_something_has_changed():
    actor, looks = Actor(), []

    def list_nodes():
        looks.append(len(looks))
        if len(looks) == 3:
            actor.ready()
        return {"a": actor}

    changes = RayDirectory(list_nodes, every_s=0.001).changes()
    with trio.fail_after(5):
        assert kinds([await anext(changes)]) == [(NodeUp, "a")]
    assert looks == [0, 1, 2]


async def test_an_answer_of_another_thread_wakes_the_task_that_waits():
    future = Future()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, future.set_result, b"answer")
        with trio.fail_after(5):
            assert await wait_future(future) == b"answer"


async def test_an_error_of_another_thread_is_raised_in_the_waiting_task():
    future = Future()
    future.set_exception(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await wait_future(future)


async def test_a_cancelled_wait_ends_at_once_and_the_late_answer_is_dropped():
    future = Future()
    with trio.move_on_after(0) as scope:
        await wait_future(future)
    assert scope.cancelled_caught
    future.set_result(b"late")
    await trio.testing.wait_all_tasks_blocked()


def test_an_answer_after_the_end_of_the_run_is_dropped():
    future = Future()

    async def leave():
        with trio.move_on_after(0):
            await wait_future(future)

    trio.run(leave)
    future.set_result(b"late")
