"""Writes test/unit/kernels.txt: what the assembler says of every CUDA kernel, for test_cuda_cards.cpp.

    python3 tools/kernels.py build/liblltm_ops.so ...

Give it libraries or object files with machine code, and run it again when a kernel is added or has other launch bounds.
A line has a kernel's mangled name without what depends on the build, the threads of its launch bounds and, for each
architecture, its registers and bytes of static shared memory. Figures of other architectures stay. Needs cuobjdump of
the CUDA toolkit (also pip install nvidia-cuda-cuobjdump).
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "test" / "unit" / "kernels.txt"


def short(mangled: str) -> str:
    """Without lltm::cuda and the names of anonymous namespaces, which contain hashes and a process's number."""
    name = mangled.removeprefix("_ZN4lltm4cuda")
    match = re.match(r"(\d+)_GLOBAL__N_", name)
    return name[len(match[1]) + int(match[1]) :] if match else name


def dump(option: str, path: str) -> str:
    return subprocess.run(["cuobjdump", option, path], stdout=subprocess.PIPE, check=True, text=True).stdout


def main() -> None:
    threads: dict[str, str] = {}
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for line in FILE.read_text().splitlines() if FILE.exists() else []:
        name, threads[name], *of = line.split()
        found[name] = dict(figures.split("=") for figures in of)
    seen = set()
    for path in sys.argv[1:]:
        pattern = r"^arch = sm_(\w+)$|^ Function (\S+):\n  REG:(\d+) .*SHARED:(\d+) "
        for match in re.finditer(pattern, dump("--dump-resource-usage", path), re.M):
            if match[1]:
                architecture = match[1]
                # From 9.0 on, counted with what the system takes of the shared memory of each block.
                reserved = 1024 if int(re.sub(r"\D", "", architecture)) >= 90 else 0
            else:
                found[short(match[2])][architecture] = f"{match[3]}/{max(int(match[4]) - reserved, 0)}"
                seen.add(short(match[2]))
        pattern = r"^\.nv\.info\.(\S+)$|EIATTR_MAX_THREADS\s+Format:\s+EIFMT_SVAL\s+Value:\s+(\w+) (\w+) (\w+)"
        for match in re.finditer(pattern, dump("--dump-elf", path), re.M):
            if match[1]:
                name = short(match[1])
            else:
                x, y, z = (int(match[i], 16) for i in (2, 3, 4))
                threads[name] = str(x * y * z)
    lines = [
        " ".join([name, threads[name], *(f"{key}={of}" for key, of in sorted(found[name].items()))])
        for name in sorted(seen)
    ]
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
