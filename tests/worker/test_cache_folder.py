"""The cache folder: where it is, and that nothing half-made is ever found in it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from worker.cache_folder import cache_folder, made_once


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", "/here")
    monkeypatch.setenv("XDG_CACHE_HOME", "/there")
    assert cache_folder() == Path("/here")
    monkeypatch.delenv("HEADWAY_CACHE")
    assert cache_folder() == Path("/there/headway")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "headway"


def writing(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(text)

    return write


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    made = made_once(tmp_path / "deep" / "file", writing("one"))
    assert made_once(made, writing("two")).read_text() == "one"


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.mkdir()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        made_once(tmp_path / "folder", fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", [True, False])
def test_of_two_makers_at_once_both_are_served(tmp_path: Path, folder: bool) -> None:
    target = tmp_path / "thing"

    def make(path: Path, nested: bool = True) -> None:
        if nested:  # meanwhile another process makes the same
            made_once(target, lambda other: make(other, False))
        if folder:
            path.mkdir()
            (path / "part").write_text("whole")
        else:
            path.write_text("whole")

    made = made_once(target, make)
    assert (made / "part" if folder else made).read_text() == "whole"
    assert list(tmp_path.iterdir()) == [target]
