"""What the documentation says is true: commands, specs, Python, links, keys and columns."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import bedplate as bp

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: where it is, what language it is in, what it says."""

    place: str
    language: str
    text: str


def blocks(language: str) -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        for match in FENCE.finditer(text):
            if match[1] == language:
                line = text.count("\n", 0, match.start()) + 1
                yield Block(f"{page.relative_to(ROOT)}:{line}", language, match[2])


def commands() -> Iterator[tuple[str, list[str]]]:
    for block in blocks("console"):
        for line in block.text.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if line.startswith("$ bedplate"):
                yield block.place, words[1:]


def specs() -> Iterator[Block]:
    yield from (block for block in blocks("toml") if "[workload]" in block.text)
    for path in sorted((ROOT / "specs").glob("*.toml")):
        yield Block(str(path.relative_to(ROOT)), "toml", path.read_text())


@cache
def help_of(*verbs: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "bedplate", *verbs, "--help"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def is_accepted(text: str, path: Path) -> None:
    """Plan the spec; where the machine lacks something, the spec itself has been read by then."""
    path.write_text(text)
    try:
        bp.plan(path)
    except bp.ProvisionError:
        pytest.skip("this machine does not offer what the spec asks for; its keys were accepted")


def section(page: str, heading: str) -> str:
    _, found, rest = (ROOT / "docs" / page).read_text().partition(f"\n{heading}\n")
    assert found, f"{page} has no heading {heading!r}"
    return re.split(r"^#{2,3} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def filled(table: type) -> dict[str, Any]:
    """Return a table of a spec file that has all of its keys."""
    return table(**{entry.name: {} for entry in dataclasses.fields(table)}).to_dict()


def anchors(page: Path) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def test_there_is_something_to_check() -> None:
    assert len(PAGES) > 10
    assert sum(1 for _ in commands()) > 5
    assert sum(1 for _ in specs()) > 5


@pytest.mark.parametrize(
    ("place", "words"), [pytest.param(*found, id=" ".join(found[1])) for found in commands()]
)
def test_commands_are_understood(place: str, words: list[str]) -> None:
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    verbs = words[:2] if words[0] == "images" else words[:1]
    told = help_of(*verbs)
    assert told.returncode == 0, f"{place}: {told.stderr}"
    assert "Usage: " in told.stdout
    for option in options:
        assert option in told.stdout, f"{place}: {option}"
    for word in words:
        if word.startswith("specs/"):
            assert (ROOT / word).is_file(), f"{place}: {word}"


@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in specs()])
def test_specs_are_accepted(block: Block, tmp_path: Path) -> None:
    is_accepted(block.text, tmp_path / "spec.toml")


def test_a_wrong_spec_is_not_accepted(tmp_path: Path) -> None:
    with pytest.raises(bp.SpecError, match="scal"):
        is_accepted('[storage]\nkind = "directory"\n[workload]\nscal = 1\n', tmp_path / "s.toml")


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=block.place) for block in blocks("python")]
)
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.place, "exec")


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("table", ["trials", "intervals", "instances", "latency", "metrics"])
def test_every_column_is_documented(table: str, quick: Path) -> None:
    frame = getattr(bp.load_run(quick), table)
    columns = list(frame.columns)
    if table == "trials":
        # Columns of further factors are named by the spec.
        del columns[columns.index("storage") + 1 : columns.index("workload")]
    documented = section("results.md", f"### `{table}`")
    assert ROW.findall(documented.split("\n\n| `metric` |")[0]) == columns
    for column in columns:
        assert f"| `{column}` | {frame.schema[column]} |" in documented


def test_every_metric_is_documented() -> None:
    sources = ["adapters/src/monitor.rs", "core/src/sampler.rs", "core/src/server_metrics.rs"]
    named = [
        name
        for source in sources
        for name in re.findall(
            r'"((?:host|volume|server)_\w+)"', (ROOT / "rust" / source).read_text()
        )
    ]
    documented = ROW.findall(section("results.md", "### `metrics`").split("| `metric` |")[-1])
    assert len(documented) == len(set(documented)) > 50
    assert set(named) == set(documented)


@pytest.mark.parametrize(
    ("heading", "tables"),
    [
        ("## Top level", [bp.Spec]),
        ("## `engine`", [bp.Postgres, bp.MariaDb]),
        (
            "## `storage`",
            [
                *(bp.Directory, bp.Tmpfs, bp.Ext2, bp.Ext3, bp.Ext4, bp.Xfs),
                *(bp.Btrfs, bp.F2fs, bp.Nilfs2, bp.Zfs),
            ],
        ),
        ("## `workload`", [bp.TpcB, bp.SimpleUpdate, bp.SelectOnly]),
        ("## `design`", [bp.Design]),
    ],
)
def test_every_key_is_documented(heading: str, tables: list[type]) -> None:
    # The keys of a spec file, which are not always those of the class.
    keys = {key for table in tables for key in filled(table)}
    documented = ROW.findall(section("spec.md", heading))
    documented = [key for key in documented if key not in {"smoke", "gate", "publish", "calibrate"}]
    assert sorted(documented) == sorted(keys)


def test_every_property_of_zfs_is_documented() -> None:
    properties = [*filled(bp.Zfs)["options"]]
    documented = ROW.findall(section("spec.md", "### `storage.options`"))
    assert sorted(documented) == sorted(properties)


def test_profiles_are_those_of_the_plan() -> None:
    row = re.compile(r"^\| `(\w+)` \| (\d+) s \| (\d+) s \| (\d+) \|$", re.MULTILINE)
    rows = row.findall(section("spec.md", "## `design`"))
    assert len(rows) == 4
    for profile, *numbers in rows:
        spec = bp.Spec(
            site="local",
            engine=bp.Postgres(provision="process", bin_dir="/nowhere"),
            storage=bp.Directory(path="/nowhere"),
            design=bp.Design(profile=profile),
        )
        planned = json.loads(bp.plan(spec).to_json())
        workload = planned["cells"][0]["workload"]
        found = [
            workload["warmup_s"],
            workload["length"]["duration_s"],
            planned["design"]["blocks"],
        ]
        assert [float(number) for number in numbers] == found
