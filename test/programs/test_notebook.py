"""examples/notebook: its code runs, from the first cell to the last, and shows what its outputs show."""

import contextlib
import io
import json

import pytest
import torch
from lltm_testing.building import ROOT

NOTEBOOK = ROOT / "examples" / "notebook" / "replace_lstm.ipynb"
LOSSES = "update"


@pytest.fixture
def settings_restored():
    threads, tf32 = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = tf32


@pytest.mark.release  # tests of the layers assert what it shows
@pytest.mark.usefixtures("settings_restored")
def test_the_notebook_runs():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names: dict = {"__name__": "__main__"}
    shown, printed = [], io.StringIO()
    with contextlib.redirect_stdout(printed):
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
                shown += [line for output in cell["outputs"] for line in output.get("text", [])]
    # Both layers have the same losses, here and in the outputs that the notebook was saved with.
    for lines in (printed.getvalue().splitlines(), shown):
        losses = [line.split() for line in lines if line.startswith(LOSSES)]
        assert len(losses) == 4
        for *_, theirs, _, ours in losses:
            assert abs(float(theirs.rstrip(",")) - float(ours)) < 1e-2
    assert names["gradients"]["weight_hh_l0"].shape == (4, 512, 128)
