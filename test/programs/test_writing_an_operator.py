"""Follows docs/writing-an-operator.md: writes every file and runs every command, in the order of the page."""

import os
import re

import pytest
import torch
from lltm_testing.building import ROOT, run, torch_cuda_arch_list
from lltm_testing.documentation import blocks

import lltm

PAGE = ROOT / "docs" / "writing-an-operator.md"

FILE_NAME = re.compile(r"^(?://|#) ([\w./]+)\n")


def make_script() -> tuple[str, list[str]]:
    """The page as a shell script, and the outputs that it shows.

    Blocks of `sh` are commands, blocks of `text` outputs, and those with braces are of examples/operators, which has
    tests of its own. All others are files, named in a comment on the first line.
    """
    script, outputs = [], []
    for _, language, block in blocks(PAGE):
        if language == "sh":
            script.append(block)
        elif language == "text":
            outputs.append(block)
        elif not language.startswith("{"):
            name = FILE_NAME.match(block)
            assert name, f"a block of {language} does not begin with the name of a file:\n{block}"
            folder = name[1].rpartition("/")[0] or "."
            script.append(f"mkdir -p {folder}\ncat > {name[1]} <<'END OF FILE'\n{block}END OF FILE\n")
    return "".join(script), outputs


@pytest.mark.release
def test_page(tmp_path):
    if lltm.cmake_prefix_path is not None:
        pytest.skip("the page begins with a build tree of lltm")
    script, outputs = make_script()

    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "build").symlink_to(lltm.library_path.parent)
    variables = {"CMAKE_BUILD_TYPE": "None"}  # not optimized: it takes a compiler less time
    site = tmp_path / "site"  # where pip installs, instead of the environment
    variables |= {"PIP_TARGET": site, "PIP_NO_DEPS": "1", "PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}"}
    # In the same folder and with the same options, so that nothing is compiled again.
    variables |= {"SKBUILD_CMAKE_BUILD_TYPE": "None", "SKBUILD_BUILD_DIR": "build"}
    if lltm.has_cuda:
        variables["TORCH_CUDA_ARCH_LIST"] = torch_cuda_arch_list()
    (tmp_path / "page.sh").write_text(script)
    printed = run("bash", "-euxo", "pipefail", tmp_path / "page.sh", cwd=checkout, HOME=tmp_path, **variables)
    for output in outputs:
        assert output in printed
    built_with_cuda = "softclip.cu.o" in printed
    assert built_with_cuda or not lltm.has_cuda, printed
    passed = 10 if built_with_cuda and torch.cuda.is_available() else 5
    assert re.search(rf"^{passed} passed", printed, re.MULTILINE), printed
