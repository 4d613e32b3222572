"""A short run of examples/stream: it learns, in one process and in two, and C++ and Python write the same text."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from lltm_testing.building import kept_folder, run, with_lltm
from torch import nn

import lltm

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "stream"
sys.path.insert(0, str(FOLDER))

import corpus  # noqa: E402
import stream  # noqa: E402


@pytest.fixture(scope="module")
def texts():
    training, held_out = corpus.source_files()
    return corpus.read(training[:40], seed=0), corpus.read(held_out[:2])


def test_held_out_files_are_kept_apart():
    training, held_out = corpus.source_files()
    assert not set(training).intersection(held_out)
    assert len(held_out) > 10 and len(training) > 10 * len(held_out)
    assert corpus.source_files() == (training, held_out)


def test_chunks_go_on_where_they_stopped(texts):
    """The rows of successive chunks are successive text, and the target of each byte is the next byte."""
    text = texts[0]
    stream_of_chunks = corpus.chunks(text, rows=4, steps=16)
    first, second = next(stream_of_chunks), next(stream_of_chunks)
    length = (len(text.bytes) - 1) // 4 // 16 * 16
    for row in range(4):
        start = row * length
        whole = torch.cat([first.bytes[:, row], second.bytes[:, row]])
        assert torch.equal(whole, text.bytes[start : start + 32].long())
        assert torch.equal(second.next_bytes[:, row], text.bytes[start + 17 : start + 33].long())
    assert first.bytes[0, 0] == corpus.BEGIN
    shares = [next(corpus.chunks(text, 4, 16, rank, 2)).bytes for rank in (0, 1)]
    assert torch.equal(torch.stack(shares, dim=2).flatten(1), first.bytes)


def test_as_many_parameters():
    counts = {name: stream.parameter_count(model) for name, model in stream.twin_models().items()}
    assert abs(counts["lltm.LLTM"] - counts["nn.LSTM"]) < 0.01 * counts["lltm.LLTM"]
    assert counts["lltm.LSTM"] == counts["nn.LSTM"]


@pytest.mark.parametrize("name", ["lltm.LLTM", "lltm.LSTM", "nn.LSTM"])
def test_learns_something_in_a_few_steps(texts, device, name):
    model = stream.twin_models(hidden_size=32)[name].to(device)
    options = stream.Options(steps=30, rows=8, chunk=32, peak_rate=2e-2)
    reports = list(stream.train(model, *texts, options, report_every=10))
    assert [report.step for report in reports] == [10, 20, 30]
    assert reports[-1].held_out < 5 < 6 < reports[0].loss  # guessing gives 8


def test_both_lstms_learn_the_same(texts):
    def losses(name):
        options = stream.Options(steps=10, rows=8, chunk=32)
        (report,) = stream.train(stream.twin_models(hidden_size=32)[name], *texts, options)
        return report.loss, report.held_out

    assert losses("lltm.LSTM") == pytest.approx(losses("nn.LSTM"), rel=1e-4)


@pytest.mark.parametrize("first", [corpus.BEGIN, stream.LINE])
def test_a_line_begins_with_an_empty_state(first):
    """The bytes read before do not matter, although the state is carried."""
    model = stream.ByteModel(lltm.LLTM, 16)
    text = torch.tensor([[first, *b"import sys"]]).t()
    _, state = model(torch.randint(11, 256, (50, 1)))
    torch.testing.assert_close(model(text, state)[0], model(text)[0], rtol=0, atol=0)
    assert not torch.equal(model(text[1:], state)[0], model(text[1:])[0])


@pytest.mark.release
def test_two_processes_train_what_one_does(tmp_path, device, monkeypatch):
    """With torchrun and gloo or, on two GPUs, NCCL, each process trains on half the rows. The parameters are the same
    as those of a single process with all rows."""
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    run(
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
        FOLDER / "demo.py", "--build-dir", tmp_path, "--train-only",
        "--steps", 4, "--hidden-size", 16, "--device", device.type,
        **with_lltm(), OMP_NUM_THREADS=1,
        NVIDIA_TF32_OVERRIDE=0,  # cuDNN would use TF32 for the LSTM
    )  # fmt: skip
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    training, held_out = corpus.source_files()
    texts = corpus.read(training, seed=0), corpus.read(held_out)
    for name, model in stream.twin_models(hidden_size=16).items():
        untrained = model.readout.bias.detach().clone()
        list(stream.train(model.to(device), *texts, stream.Options(steps=4)))
        assert (model.readout.bias.cpu() - untrained).abs().max() > 1e-3
        by_two = torch.load(tmp_path / "stream" / f"{name}.pt")
        torch.testing.assert_close(by_two, dict(model.state_dict()), rtol=1e-3, atol=1e-4, check_device=False)


THREADS_OF_A_GROUP = """
import os, demo, torch
def threads_of_gloo():
    names = [open(f"/proc/self/task/{thread}/comm").read() for thread in os.listdir("/proc/self/task")]
    return sum("gloo" in name for name in names)
with demo.process_group("cpu"):
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    before = threads_of_gloo()
assert before > threads_of_gloo() == 0
"""


def test_the_process_group_ends_with_its_threads():
    """A thread of gloo that releases a tensor while the interpreter finalizes aborts the process."""
    run(
        sys.executable, "-c", THREADS_OF_A_GROUP, **with_lltm(FOLDER),
        RANK=0, LOCAL_RANK=0, WORLD_SIZE=1, MASTER_ADDR="localhost", MASTER_PORT=0,
    )  # fmt: skip


def test_make_passes_a_line_with_quotes_on():
    line = """print('a "b"""
    commands = run(
        "make", "--no-print-directory", "--dry-run", "stream", f"LINE={line}", cwd=FOLDER.parents[1], MAKEFLAGS=None
    )
    script = commands.splitlines()[-1].replace("scripts/in-environment demo python3", "printf '%s\\n'")
    assert run("sh", "-c", script, LINE=line).splitlines()[-1] == f"--line={line}"


@pytest.fixture
def demo(monkeypatch):
    """The module of this example: those of other examples have the same names."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in ("demo", "picture"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("demo")
    for name in ("demo", "picture"):
        del sys.modules[name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "--steps and --hidden-size must be 1 or more"),
        (["--temperature", "nan"], "--count and --temperature must be 0 or more"),
        ([], "--build-dir: the library was not built in "),
    ],
    ids=["steps", "temperature", "build-dir"],
)
def test_wrong_options_are_errors_before_the_training(demo, options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo.py", "--build-dir", str(tmp_path), *options])
    with pytest.raises(SystemExit) as error:
        demo.main()
    printed = capsys.readouterr()
    assert error.value.code == 2 and message in printed.err and not printed.out


@pytest.mark.release  # test_digits_example.py also runs a package from C++
def test_cpp_writes_what_python_writes(tmp_path, demo):
    """The demo's export, program and comparison. The program stays in the build tree for the next run."""
    if not (lltm.library_path.parent / "CMakeCache.txt").exists():
        pytest.skip("the library is not in a build tree, from which it could be installed")
    torch.manual_seed(0)
    model = stream.ByteModel(lltm.LLTM, 16).eval()
    demo.export(model, tmp_path / "model.pt2")
    program = demo.build_program(lltm.library_path.parent, kept_folder("stream_test", tmp_path))
    demo.compare(program, tmp_path / "model.pt2", torch.device("cpu"), model, ["import os\nimport ", "def "])
    with pytest.raises(SystemExit, match="differently"):
        demo.compare(program, tmp_path / "model.pt2", torch.device("cpu"), stream.ByteModel(nn.LSTM, 16), ["import "])
