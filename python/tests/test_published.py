from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import tomllib

import bedplate as bp

SPECS = Path(__file__).parents[2] / "specs"


def test_what_was_printed_is_there() -> None:
    # Read off the published pages.
    optane = bp.published("mariadb-optane")
    assert optane.height == 28
    by_label = {(row["storage_label"], row["clients"]): row["value"] for row in optane.to_dicts()}
    assert by_label["EXT4 Samsung 970 EVO 500GB", 1] == 304
    assert by_label["F2FS 900p", 1] == 13276
    assert by_label["Btrfs RAID0 Dual 900p", 16] == 264
    schemas = bp.published("pgbench-four-schemas").filter(metric="tps_including_connect")
    assert schemas["value"].sum() == pytest.approx(367.154723)
    assert optane.schema["value"] == pl.Float64
    assert optane.schema["clients"] == optane.schema["scale"] == pl.UInt32


def test_an_unknown_study_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^'optane' has no .*known: .*mariadb-optane"):
        bp.published("optane")


@pytest.mark.parametrize("name", ["mariadb-optane", "mariadb-optane-small"])
def test_the_spec_measures_what_was_published(name: str) -> None:
    spec = tomllib.loads((SPECS / f"{name}.toml").read_text())
    published = bp.published("mariadb-optane")
    # The first label is ext4 on another device, as the spec says.
    labels = published["storage_label"].unique(maintain_order=True).to_list()[1:]
    ours = [storage["label"] for storage in spec["storage"]]
    assert sorted(ours) == sorted(labels)
    for storage in spec["storage"]:
        (of_label,) = (
            published.filter(storage_label=storage["label"], clients=1)
            .select("filesystem", "layout")
            .rows()
        )
        assert (storage["kind"], storage.get("layout", "single")) == of_label
    assert spec["workload"]["clients"] == published["clients"].unique().sort().to_list()


@pytest.mark.parametrize(
    ("name", "scales"), [("postgresql-on-zfs", [1, 1000]), ("postgresql-on-zfs-small", [1])]
)
def test_the_spec_of_zfs_measures_what_was_published(name: str, scales: list[int]) -> None:
    spec = tomllib.loads((SPECS / f"{name}.toml").read_text())
    published = bp.published("postgresql-on-zfs").filter(metric="tps", scale=1, clients=1)
    rows = published.select("storage_label", "filesystem", "options").rows()
    ours = [
        (
            storage["label"],
            storage["kind"],
            ";".join(f"{name}={value}" for name, value in storage.get("options", {}).items()),
        )
        for storage in spec["storage"]
    ]
    assert ours == [(label, kind, options or "") for label, kind, options in rows]
    # One scale may stand for itself.
    scale = spec["workload"]["scale"]
    assert (scale if isinstance(scale, list) else [scale]) == scales
    assert spec["workload"]["clients"] == [1, 100]
