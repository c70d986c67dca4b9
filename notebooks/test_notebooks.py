"""Every notebook runs from top to bottom, and none of its trials is void."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import bedplate as bp

HERE = Path(__file__).parent
NOTEBOOKS = sorted(HERE.glob("*.ipynb"))
# Set-up, load and tear-down included; a machine that is busy with other things is slow.
CELL_TIMEOUT_S = 600

# What Jupyter's own parts warn of is not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")


def test_there_are_notebooks() -> None:
    """A wrong folder would let everything pass."""
    assert NOTEBOOKS  # noqa: S101


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in NOTEBOOKS])
def test_it_is_stored_without_outputs(path: Path) -> None:
    """Outputs would be of one machine and one day; they would also hide what no longer runs."""
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)  # noqa: S101
    for cell in notebook.cells:
        assert not cell.get("outputs")  # noqa: S101
        assert cell.get("execution_count") is None  # noqa: S101


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in NOTEBOOKS])
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that raises fails the test with its traceback."""
    # The kernel's own files stay out of the home directory.
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", os.fspath(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", os.fspath(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    work = tmp_path / "work"
    work.mkdir()
    # A notebook names the specs beside its own folder.
    (tmp_path / "specs").symlink_to(HERE.parent / "specs")
    NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": os.fspath(work)}},
    ).execute()
    runs = [bp.load_run(directory) for directory in sorted((work / "runs").iterdir())]
    assert runs  # noqa: S101
    for results in runs:
        assert results.complete  # noqa: S101
        void = results.trials.filter(trust="void").select("cell", "trust_reasons", "error")
        assert void.is_empty(), void.to_dicts()  # noqa: S101
