# Sourced by run and full, in the root of the checkout: what both set up, and how both report.
# shellcheck shell=bash
set -euo pipefail
exec </dev/null

sections=()
section=
section_began=0
end_section() {
  [ -z "$section" ] || sections+=("$(printf '%5d s  %s' $((SECONDS - section_began)) "$section")")
}
step() {
  end_section
  section=$1
  section_began=$SECONDS
  printf '\n== %s (%d s since the start)\n' "$section" "$SECONDS"
}
# The seconds of every section, also of a run that fails.
report() {
  end_section
  printf '\n'
  printf '%s\n' "${sections[@]}"
  printf '%5d s  in all\n' "$SECONDS"
}
trap report EXIT

# torch>=2.11.0a0,<2.16 is tested with 2.11.0 and 2.15.0.
read -r lower upper < <(sed -n 's/^torch>=\([0-9]*\.[0-9]*\).*,<\(.*\)/\1 \2/p' requirements/build.txt)
oldest=$lower.0
newest=${upper%.*}.$((${upper##*.} - 1)).0

lacks_tools() {
  ! { command -v make && command -v g++ && command -v git && python3 -c 'import ensurepip, venv'; } >/dev/null 2>&1
}
if lacks_tools && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  step 'Installing make, g++, git and Python with apt-get'
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq make g++ git python3 python3-venv
fi
if lacks_tools; then
  echo 'error: make, g++, git and a python3 with venv are needed, and one of them is missing' >&2
  exit 1
fi

# Two installations of PyTorch with CUDA take 11 GB, the wheels that pip unpacks 3 GB, and builds the rest, excluding
# pip's cache.
free=$(df -Pk . | awk 'NR == 2 { print int($4 / 2^20) }')
[ "$free" -ge 24 ] || export PIP_NO_CACHE_DIR=1 # takes several GB
if [ "$free" -lt 16 ] && [ ! -d ".venv-torch-$oldest" ]; then
  echo "warning: $free GiB are free in $PWD, and from a clean clone up to 16 are needed" >&2
fi

in_test() { scripts/in-environment test "$@"; }
ask_torch() { in_test python3 -c "import torch; print($1)" | tail -1; }

step "Environment with PyTorch $newest"
in_test true
torch=$(ask_torch torch.__version__)
cuda=$(ask_torch 'torch.version.cuda or str()')

# Made in the background, because pip mostly waits for the network. If one fails, the step that needs it tries again and
# says why.
others=()
for version in $newest $oldest; do
  [ "${torch%%+*}" = "$version" ] || others+=("$version")
done
for version in "${others[@]}"; do
  TORCH=$version in_test true
done >/dev/null 2>&1 &
# shellcheck disable=SC2034 # run and full wait for it
environments=$!

step 'Formatting, lint and types'
make lint

# The CUDA code is compiled once, for the first run of the tests. The other runs use a library built for the CPU only.
if [ -z "$cuda" ]; then
  echo "error: PyTorch $torch was built without CUDA, so the CUDA code cannot be compiled" >&2
  exit 1
fi
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if ! "$nvcc" --version 2>/dev/null | grep -q "release ${cuda%%.*}\."; then
  step "nvcc $cuda from PyPI: this machine has none of CUDA ${cuda%%.*}"
  python3 -m venv .venv-nvcc
  .venv-nvcc/bin/python3 -m pip install -q --disable-pip-version-check \
    nvidia-{cuda-nvcc,cuda-crt,cuda-runtime,cuda-cccl,nvvm}=="$cuda.*"
  CUDACXX=$(echo "$PWD"/.venv-nvcc/lib/python3*/site-packages/nvidia/cu*/bin/nvcc)
  # PyTorch's headers include those of cuBLAS and the like.
  CPATH=$(ask_torch 'torch.__path__[0]')/../nvidia/cu${cuda%%.*}/include
  export CUDACXX CPATH
fi
export TORCH_CUDA_ARCH_LIST=9.0a # also for the builds of tests
