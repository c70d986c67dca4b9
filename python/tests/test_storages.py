"""Both engines on every storage that this kind of machine can make."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

import bedplate as bp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conftest import Desk

    from bedplate.spec import Storage

ENGINES = [
    bp.Postgres(provision="process", allow_other_version=True),
    bp.MariaDb(provision="process", allow_other_version=True),
]
# The type as the kernel shows it, where it is not the kind itself.
SHOWN = {"directory": None, "zfs": "fuse.zfs"}


def run_on(desk: Desk, storages: Sequence[Storage]) -> None:
    """Run each engine on each storage, and look at what came of it."""
    spec = bp.Spec(
        name="storages",
        storage=storages,
        engine=ENGINES,
        workload=bp.TpcB(clients=2, duration=1, warmup=0),
    )
    done = desk.run(spec.to_json(), name="spec.json")
    assert done.returncode == 0, done.stderr
    (run,) = desk.runs()
    results = bp.load_run(run)
    assert results.plan.unavailable == {}
    rows = results.trials.to_dicts()
    assert len(rows) == len(storages) * len(ENGINES)
    for row, storage in itertools.product(rows, storages):
        if row["storage"] != (storage.label or storage.kind):
            continue
        # The sums and the history were right, or the trial were void.
        assert row["trust"] != "void", row["trust_reasons"]
        assert row["tps"] > 0
        shown = SHOWN.get(storage.kind, storage.kind)
        assert shown in {None, row["fs_type"]}
        if storage.kind not in {"directory", "tmpfs"}:
            assert row["durability"] in {"durable", "group"}, row
    desk.assert_nothing_left()


def test_both_engines_run_on_one_of_each_kind(desk: Desk) -> None:
    run_on(
        desk,
        [
            bp.Directory(),
            bp.Tmpfs(),
            bp.Ext2(),
            bp.Ext3(mount_options=["data=journal"]),
            bp.Ext4(),
            bp.Xfs(),
            bp.Btrfs(layout="raid1", nodatacow=True),
            bp.Zfs(layout="raid1", recordsize="8k", logbias="throughput", size="1GiB"),
        ],
    )


MODES = ("journal", "ordered", "writeback")


@pytest.mark.soak
@pytest.mark.parametrize(
    "storages",
    [
        pytest.param(
            [bp.Ext3(label=mode, mount_options=[f"data={mode}"]) for mode in MODES], id="ext3"
        ),
        *(
            pytest.param(
                [
                    bp.Ext4(label=str(size), block_size=size, mount_options=[f"data={mode}"])
                    for size in (1024, 2048, 4096)
                ],
                id=f"ext4-{mode}",
            )
            for mode in MODES
        ),
        pytest.param(
            [bp.Xfs(label=str(size), block_size=size) for size in (1024, 2048, 4096)], id="xfs"
        ),
        *(
            pytest.param(
                [
                    bp.Btrfs(label=f"{layout} {in_place}", layout=layout, nodatacow=in_place)
                    for in_place in (False, True)
                ],
                id=f"btrfs-{layout}",
            )
            for layout in ("single", "raid0", "raid1", "raid10")
        ),
        pytest.param(
            [
                bp.Zfs(label="single", recordsize="8k", size="1GiB"),
                bp.Zfs(label="mirror", layout="raid1", logbias="throughput", size="1GiB"),
                bp.Zfs(label="stripe", layout="raid0", compression="on", size="1GiB"),
            ],
            id="zfs",
        ),
    ],
)
def test_both_engines_run_on_every_variant(desk: Desk, storages: list[Storage]) -> None:
    run_on(desk, storages)


def test_random_fillers_take_room_where_blanks_are_compressed(desk: Desk) -> None:
    spec = bp.Spec(
        storage=bp.Btrfs(mount_options=["noatime", "compress-force=zstd"]),
        engine=ENGINES[0],
        workload=bp.TpcB(scale=2, filler_random=[0, 100], duration=1, warmup=0),
    )
    done = desk.run(spec.to_json(), name="spec.json")
    assert done.returncode == 0, done.stderr
    (run,) = desk.runs()
    rows = bp.load_run(run).trials.to_dicts()
    used = {row["filler_random"]: row["volume_used_bytes"] for row in rows}
    # 200,000 fillers of 84 bytes, in the table and once more in the write-ahead log. Letters of
    # which there are 64 take six bits of eight.
    fillers = 200_000 * 84
    left = {row["filler_random"]: row["compressed_share"] for row in rows}
    # Blanks all but vanish. Of a row of about 128 bytes, 84 are letters, six bits of eight.
    assert left["0"] < 0.15
    assert 0.45 < left["100"] < 0.75
    gained = used["100"] - used["0"]
    assert 2 * 0.6 * fillers < gained < 2 * 1.1 * fillers
    desk.assert_nothing_left()
