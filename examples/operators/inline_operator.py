"""An operator within a script: C++ in a string, compiled by load_inline. The quickest way to try an idea.

    python3 examples/operators/inline_operator.py [BUILD_FOLDER]

The kernel only calls ATen, so it is registered together with its schema, as a composite: it runs on every device, and
autograd and the compilers trace through it.
"""

import sys
from pathlib import Path

import torch
from torch.utils import cpp_extension

SOURCE = """
#include <ATen/core/Tensor.h>
#include <ATen/ops/relu.h>
#include <torch/library.h>

at::Tensor squared_relu(const at::Tensor& x) {
  return at::relu(x).square();
}

TORCH_LIBRARY(example_inline, m) {
  m.def("squared_relu(Tensor x) -> Tensor", TORCH_FN(squared_relu));
}
"""


def load(build_folder: str | None = None) -> None:
    if build_folder:
        Path(build_folder).mkdir(parents=True, exist_ok=True)
    cpp_extension.load_inline(
        "example_inline",
        SOURCE,
        extra_cflags=["-O3", "-std=c++20"],
        build_directory=build_folder,
        is_python_module=False,
        no_implicit_headers=True,  # torch/extension.h includes Python, and takes most of a minute to compile
    )


if __name__ == "__main__":
    load(*sys.argv[1:])
    x = torch.tensor([-1.0, 2.0, 3.0], requires_grad=True)
    y = torch.ops.example_inline.squared_relu(x)
    y.sum().backward()
    print(y.tolist(), x.grad.tolist())
