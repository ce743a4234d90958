"""Changed files are read again; a failure is reported and changes nothing. At virtual times."""

import logging
import os
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tlserve.config.settings import Settings
from tlserve.config.tables.network import AccessSettings
from tlserve.errors import SettingsError
from tlserve.http.messages import Headers, HttpFault
from tlserve.lifecycle.reload import INTERVAL_S, Reloading, look_at, watch_files
from tlserve.programs.server_objects import make_door, reloadings

KEY = "sk-0123456789-abcdef"
OTHER = "sk-fedcba-9876543210"


class Watched:
    """Text of a file that is accepted when it changes; "bad" is refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.taken = [path.read_text(encoding="utf-8")]

    def reload(self) -> None:
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else "bad"
        if text == "bad":
            raise SettingsError(("it is bad", "and worse"))
        self.taken.append(text)

    def reloading(self) -> Reloading:
        return Reloading(what="the text", paths=(str(self.path),), reload=self.reload)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    path = tmp_path / "text"
    path.write_text("one", encoding="utf-8")
    return Watched(path)


@pytest.mark.spec("LIFE-9")
async def test_only_a_changed_file_is_read_again(watched: Watched, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(watch_files, [watched.reloading()])
        await trio.sleep(3 * INTERVAL_S)
        assert watched.taken == ["one"]
        watched.path.write_text("other", encoding="utf-8")
        await trio.sleep(3 * INTERVAL_S)
        assert watched.taken == ["one", "other"]
        nursery.cancel_scope.cancel()


@pytest.mark.spec("LIFE-9")
async def test_a_link_to_another_file_is_a_change(watched: Watched, autojump_clock: MockClock) -> None:
    new = watched.path.with_name("new")
    new.write_text("two", encoding="utf-8")
    stat = watched.path.stat()
    os.utime(new, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    link = watched.path.with_name("link")
    link.symlink_to(watched.path)
    watched.path = link
    async with trio.open_nursery() as nursery:
        await nursery.start(watch_files, [watched.reloading()])
        turned = link.with_name("turned")
        turned.symlink_to(new)
        turned.replace(link)
        await trio.sleep(2 * INTERVAL_S)
        assert watched.taken == ["one", "two"]
        nursery.cancel_scope.cancel()


@pytest.mark.spec("LIFE-10")
async def test_an_unusable_file_is_reported_once_and_the_watch_continues(
    watched: Watched, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tlserve.lifecycle")
    async with trio.open_nursery() as nursery:
        await nursery.start(watch_files, [watched.reloading()])
        watched.path.write_text("bad", encoding="utf-8")
        await trio.sleep(5 * INTERVAL_S)
        assert [record.message for record in caplog.records] == [
            "the text not reloaded and unchanged: it is bad",
            "the text not reloaded and unchanged: and worse",
        ]
        watched.path.unlink()
        await trio.sleep(2 * INTERVAL_S)
        watched.path.write_text("three", encoding="utf-8")
        await trio.sleep(2 * INTERVAL_S)
        assert watched.taken == ["one", "three"]
        assert caplog.records[-1].message == "the text reloaded"
        nursery.cancel_scope.cancel()


@pytest.mark.spec("LIFE-11")
async def test_without_files_no_task_wakes_up(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    await watch_files([])
    assert trio.current_time() == began


def test_a_missing_file_has_its_own_state(watched: Watched) -> None:
    before = look_at([str(watched.path)])
    watched.path.unlink()
    assert look_at([str(watched.path)]) == (None,) != before


@pytest.mark.spec("ACC-9")
async def test_added_and_removed_keys_apply_without_a_restart(tmp_path: Path, autojump_clock: MockClock) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f'[[keys]]\nname = "a"\nkey = "{KEY}"\n', encoding="utf-8")
    settings = Settings(access=AccessSettings(keys_file=str(path)))
    door = make_door(settings.access)

    def comes_in(key: str) -> bool:
        try:
            door.authenticate(Headers([("Authorization", f"Bearer {key}")]), 0.0)
        except HttpFault:
            return False
        return True

    async with trio.open_nursery() as nursery:
        await nursery.start(watch_files, reloadings(settings, door, None))
        assert (comes_in(KEY), comes_in(OTHER)) == (True, False)
        path.write_text(f'[[keys]]\nname = "b"\nkey = "{OTHER}"\n', encoding="utf-8")
        await trio.sleep(2 * INTERVAL_S)
        assert (comes_in(KEY), comes_in(OTHER)) == (False, True)
        path.write_text("", encoding="utf-8")  # half written, or emptied: this neither gives nor removes access
        await trio.sleep(2 * INTERVAL_S)
        assert (comes_in(KEY), comes_in(OTHER)) == (False, True)
        nursery.cancel_scope.cancel()


@pytest.mark.spec("LIFE-18")
def test_another_permission_is_a_change(watched: Watched) -> None:
    watched.path.chmod(0o000)
    before = look_at([str(watched.path)])
    watched.path.chmod(0o600)
    assert look_at([str(watched.path)]) != before


@pytest.mark.spec("ACC-64")
def test_a_keys_file_that_everybody_can_write_is_refused_and_read_after_chmod(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f'[[keys]]\nname = "a"\nkey = "{KEY}"\n', encoding="utf-8")
    path.chmod(0o666)
    with pytest.raises(SettingsError, match=r"access.keys_file: .*keys.toml: every user .* chmod o-w"):
        make_door(AccessSettings(keys_file=str(path)))
    path.chmod(0o644)
    assert make_door(AccessSettings(keys_file=str(path))).wants_keys
