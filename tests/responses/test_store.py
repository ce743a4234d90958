"""The store of responses: rows that come back, owners, limits, and a database whose server has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from tlserve.errors import ClientError
from tlserve.responses.context import find_items
from tlserve.responses.items import message_item, response_of, with_ids
from tlserve.responses.store import LOST, KeptResponse, ResponseStore


def kept(name: str = "resp_a", **fields: Any) -> KeptResponse:
    own: dict[str, Any] = {
        "id": name,
        "owner": "me",
        "created_s": 100.0,
        "document": {
            "id": name,
            "status": "completed",
            "output": [{**message_item("assistant", "b"), "id": "msg_a_0"}],
        },
        "items": with_ids([message_item("user", "a")], name),
    }
    return KeptResponse(**{**own, **fields})


def opened(path: str = "", *, max_bytes: int = 1 << 20, max_age_s: float = 50.0) -> ResponseStore:
    store = ResponseStore(path, max_bytes=max_bytes, max_age_s=max_age_s)
    store.open()
    return store


@pytest.mark.spec("RSP-20")
@pytest.mark.parametrize("events", [None, (), (b"event: a\ndata: {}\n\n", b"data: 2\n\n")])
def test_a_response_comes_back_as_it_was_kept(events: Any) -> None:
    store = opened()
    store.put(kept(events=events, previous="resp_b"), 100)
    assert store.get("resp_a", "me", 100) == kept(events=events, previous="resp_b")
    store.put(kept(previous=""), 100)
    assert store.get("resp_a", "me", 100) == kept()
    store.close()


@pytest.mark.spec("RSP-21")
def test_only_its_owner_finds_and_deletes_a_response() -> None:
    store = opened()
    store.put(kept(), 100)
    assert (store.get("resp_a", "other", 100), store.get("resp_a", "", 100)) == (None, None)
    assert [store.delete("resp_a", owner) for owner in ("other", "me", "me")] == [False, True, False]
    assert store.get("resp_a", "me", 100) is None
    store.close()


@pytest.mark.spec("RSP-22")
def test_what_is_too_old_or_too_much_is_deleted_the_oldest_first() -> None:
    store = opened(max_bytes=1000)
    for place, name in enumerate("abcde"):
        store.put(kept(f"resp_{name}", created_s=100.0 + place), 100)
    found = [name for name in "abcde" if store.get(f"resp_{name}", "me", 100)]
    assert found
    assert found == list("abcde")[-len(found) :]
    assert len(found) < 5
    assert store.get("resp_e", "me", 154.0) is not None
    assert store.get("resp_e", "me", 154.1) is None
    store.close()


@pytest.mark.spec("RSP-23")
def test_a_file_keeps_responses_and_marks_those_that_lost_their_server(tmp_path: Path) -> None:
    path = str(tmp_path / "responses.db")
    store = opened(path)
    store.put(kept(), 100)
    running = attrs.evolve(kept("resp_b"), document={"id": "resp_b", "status": "in_progress", "output": []})
    store.put(running, 100)
    store.close()
    again = opened(path)
    lost = again.get("resp_b", "me", 100)
    assert again.get("resp_a", "me", 100) == kept()
    assert lost is not None
    assert (lost.document["status"], lost.document["error"]["message"]) == ("failed", LOST)
    again.close()


@pytest.mark.spec("RSP-24")
def test_the_items_of_a_chain_come_in_the_order_of_the_conversation() -> None:
    rows = {name: kept(name, previous=before) for name, before in (("resp_a", ""), ("resp_b", "resp_a"))}
    reference = {"type": "item_reference", "id": rows["resp_a"].items[0]["id"]}
    new = message_item("user", "c")
    earlier, own = find_items("resp_b", (reference, new), rows.get)
    assert earlier == (*rows["resp_a"].whole_items, *rows["resp_b"].whole_items)
    assert own == (rows["resp_a"].items[0], new)
    for previous, items in (("resp_c", ()), ("", [{**reference, "id": "msg_c_0"}]), ("", [{**reference, "id": "odd"}])):
        with pytest.raises(ClientError, match="not kept here"):
            find_items(previous, tuple(items), rows.get)


def test_the_id_of_an_item_names_its_response() -> None:
    (item,) = with_ids([message_item("user", "a")], "resp_12")
    assert (item["id"], response_of(item["id"])) == ("msg_12_i0", "resp_12")
    assert [response_of(name) for name in ("msg_1", "a_b_c_d", "")] == ["", "", ""]
