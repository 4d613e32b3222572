"""What PyTorch's compilers and modes see of a call."""

import torch
from functorch.compile import make_boxed_func
from torch.utils._python_dispatch import TorchDispatchMode


def calls_of(graphs, operator) -> int:
    return sum(node.target is operator for graph in graphs for node in graph.graph.nodes)


def keep_in(graphs):
    """A compiler that keeps the graph and runs it as it is."""
    return lambda graph, _: graphs.append(graph) or make_boxed_func(graph.forward)


class Operators(TorchDispatchMode):
    """Records the operators that reach a kernel, and their arguments."""

    PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::matmul", "aten::linear"}

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[torch._ops.OpOverload, tuple]] = []

    def __torch_dispatch__(self, function: torch._ops.OpOverload, types, args=(), kwargs=None):
        self.calls.append((function, args))
        return function(*args, **(kwargs or {}))

    def names(self) -> list[str]:
        return [function.name() for function, _ in self.calls]

    def fused(self) -> list[str]:
        return [name.removeprefix("lltm::") for name in self.names() if name.startswith("lltm::")]

    def products(self) -> list[str]:
        return [name for name in self.names() if name in self.PRODUCTS]
