"""The package and a user's program under mypy."""

import re
import runpy
from pathlib import Path

import pytest
from lltm_testing.building import ROOT, kept_folder, run_python

import lltm

pytestmark = pytest.mark.pytorch

PROGRAM = Path(__file__).with_name("typed_program.py")
# Each line is an error.
MISTAKES = """
import torch, lltm
lltm.LLTM("3", 4)
lltm.LLTMCell(3, 4).forward(torch.zeros(2, 3), torch.zeros(2, 4))
lltm.ops.sequence(torch.zeros(5, 2, 3), None)
lltm.ops.sequence(torch.zeros(5, 2, 3), torch.zeros(12, 7), keeps=True)
lltm.ops.forward(torch.zeros(2, 3), torch.zeros(12, 7), None, torch.zeros(2, 4))
lltm.build_info.cuda
lltm.no_such_name
"""


def test_a_typed_program_runs():
    runpy.run_path(str(PROGRAM), run_name="__main__")


@pytest.mark.release  # make lint checks the package
def test_mypy_accepts_the_package_and_a_program_and_rejects_mistakes(tmp_path):
    """In a single run, because reading PyTorch takes most of it."""
    pytest.importorskip("mypy", reason="mypy checks the types")
    mistakes = tmp_path / "mistakes.py"
    mistakes.write_text(MISTAKES)
    package = Path(lltm.__file__).parent
    program = f"""
import sys
from mypy import api
output, errors, _ = api.run([
    "--config-file={ROOT / "pyproject.toml"}", "--cache-dir={kept_folder("mypy", tmp_path)}",
    "{package}", "{PROGRAM}", "{mistakes}",
])
print(output, errors)
"""
    output = run_python(program, cwd=tmp_path, MYPYPATH=package.parent)
    errors = re.findall(r"^(\S+):(\d+): error: ", output, re.MULTILINE)
    assert {file for file, _ in errors} == {mistakes.name}, output
    assert [int(line) for _, line in errors] == list(range(3, 10)), output
