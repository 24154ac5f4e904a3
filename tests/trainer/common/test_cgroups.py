"""The limits of control groups, from files as the kernel shows them."""

from pathlib import Path

import pytest

from trainer.common import process
from trainer.common.cgroups import cpu_quota, memory_limit

UNLIMITED = "9223372036854771712"
"""What version 1 shows for memory that is not limited."""


@pytest.mark.parametrize(
    ("own", "files", "cores", "memory"),
    [
        ("0::/\n", {"cpu.max": "150000 100000", "memory.max": "1048576"}, 1.5, 2**20),
        ("0::/pod/app\n", {"pod/cpu.max": "50000 100000", "pod/app/cpu.max": "max 100000"}, 0.5, None),
        ("0::/pod/app\n", {"pod/memory.max": "4096", "pod/app/memory.max": "8192"}, None, 4096),
        (
            "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/docker/abc\n",
            {
                "cpu/cpu.cfs_quota_us": "200000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "1048576",
            },
            2.0, 2**20,
        ),
        (
            "4:memory:/\n1:cpu:/\n",
            {
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": UNLIMITED,
            },
            None, int(UNLIMITED),
        ),
        ("0::/../other\n", {"cpu.max": "max 100000"}, None, None),
    ],
)  # fmt: skip
def test_the_smallest_limit_of_all_groups_counts(
    tmp_path: Path, own: str, files: dict[str, str], cores: float | None, memory: int | None
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / "mounted" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mounted" / name).write_text(f"{text}\n")
    assert cpu_quota(tmp_path / "mounted", tmp_path / "own") == cores
    assert memory_limit(tmp_path / "mounted", tmp_path / "own") == memory


def test_where_there_are_no_groups_nothing_is_limited(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path, tmp_path / "none") is None
    assert memory_limit(tmp_path, tmp_path / "none") is None


def test_a_container_with_a_share_of_many_cores_starts_no_thread_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "usable_cores", lambda: 64)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for quota, expected in ((None, 64), (3.5, 4), (0.2, 1), (100.0, 64)):
        monkeypatch.setattr(process, "cpu_quota", lambda quota=quota: quota)
        assert process.granted_cores() == process.cores_per_rank() == expected
