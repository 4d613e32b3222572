"""The pages of the documentation: their code runs, or compiles. scripts/check_repository.py checks their links."""

import re
import sys
from pathlib import Path

import pytest
from lltm_testing.building import ROOT, run, with_lltm
from lltm_testing.documentation import blocks
from torch.utils.cpp_extension import include_paths

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
RUN_ELSEWHERE = {
    "export.md": "operators/test_decompositions.py",
    "reinforcement-learning.md": "programs/test_reinforcement_learning.py",
    "several-gpus.md": "module/test_module_sharding.py",
    "writing-an-operator.md": "programs/test_writing_an_operator.py",
}
"""The tests that run the blocks of a page, and check more than that they run."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    """Runs the blocks of Python in their order. Those of shell, and others that are not run, have a comment above them
    that says why, and names what runs them, or the same commands: <!-- not run: the reason; test_that_does.py -->."""
    if page.name in RUN_ELSEWHERE:
        assert page.name in (ROOT / "test" / RUN_ELSEWHERE[page.name]).read_text()
        pytest.skip(f"run by {RUN_ELSEWHERE[page.name]}")
    monkeypatch.chdir(tmp_path)  # for the files that they write
    names: dict = {}
    for block in blocks(page):
        if block.language == "python" and not block.mark:
            exec(compile(block.text, str(page), "exec"), names)
        elif block.language in ("python", "sh"):
            assert block.mark.startswith("not run: "), f"is neither run nor marked:\n{block.text}"
            runs_it = re.findall(r"\.ci/run|[\w/]+\.(?:py|cmake|txt)", block.mark)
            assert runs_it or "needs Docker" in block.mark, f"nothing runs this:\n{block.text}"
            assert all((ROOT / name).exists() or any(ROOT.glob(f"test/*/{name}")) for name in runs_it)


def test_the_examples_of_docstrings():
    """Of every module, each with its output."""
    for package in ("onnx", "onnxscript"):  # for that of the translation table
        pytest.importorskip(package)
    run(sys.executable, "-m", "pytest", "-q", "--doctest-modules", "python/lltm", cwd=ROOT, **with_lltm())


# test_writing_an_operator.py compiles the blocks of its page.
CPP_PAGES = ("cpp.md", "lstm.md", "sequences.md", "serving.md")
CPP_NAMES = """const at::Tensor &input, const at::Tensor &weights, const at::Tensor &bias, const at::Tensor &h0,
    const at::Tensor &c0, const at::Tensor &lengths, const at::Tensor &begins, const at::Tensor &weight_ih,
    const at::Tensor &weight_hh, const at::Tensor &bias_ih, const at::Tensor &bias_hh,
    const torch::nn::utils::rnn::PackedSequence &packed"""


@pytest.mark.release
def test_the_cpp_of_the_pages_compiles(tmp_path):
    """As one program, because PyTorch's headers take most of the time: a function for each block."""
    headers, functions = set(), []
    for page in CPP_PAGES:
        for number, block in enumerate(blocks(ROOT / "docs" / page, "cpp")):
            includes = re.findall(r"^#include .*$", block.text, re.MULTILINE)
            headers.update(line.partition("  //")[0] for line in includes)
            body = re.sub(r"^#include .*$", "", block.text, flags=re.MULTILINE)
            name = f"{Path(page).stem}_{number}"
            is_program = "int main()" in body
            functions.append(body.replace("main", name) if is_program else f"void {name}({CPP_NAMES}) {{\n{body}}}\n")
    assert functions
    (tmp_path / "pages.cpp").write_text("\n".join([*sorted(headers), *functions]))
    folders = [f"-I{ROOT / 'include'}", *(f"-isystem{path}" for path in include_paths())]
    run("c++", "-std=c++20", "-fsyntax-only", *folders, tmp_path / "pages.cpp")
