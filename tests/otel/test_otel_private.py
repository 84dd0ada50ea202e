"""The folder of the stores is nobody else's to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from bdh_otel.database import shut_to_others


@pytest.mark.parametrize(
    ("before", "after"), [(0o777, 0o755), (0o770, 0o750), (0o755, 0o755), (0o700, 0o700)]
)
def test_a_folder_that_others_may_write_is_shut(tmp_path: Path, before: int, after: int) -> None:
    folder = tmp_path / "bdh-bridge"
    folder.mkdir()
    folder.chmod(before)
    shut_to_others(folder)
    assert folder.stat().st_mode & 0o777 == after


def test_a_folder_that_is_not_there_yet_is_no_trouble(tmp_path: Path) -> None:
    shut_to_others(tmp_path / "missing")
