"""The parts of examples/digits, which is `make demo`: the training, and a small model served from C++ in each way."""

import sys
from pathlib import Path

import pytest
import torch
from lltm_testing.building import kept_folder, run, run_python, with_lltm

pytest.importorskip("sklearn", reason="scikit-learn brings the digits")

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "digits"
sys.path.insert(0, str(FOLDER))

import digits  # noqa: E402
import programs  # noqa: E402
from export import FILES, export  # noqa: E402

import lltm  # noqa: E402


def run_with_example(program: str, **variables) -> str:
    """Run a program that can import the example's modules and the lltm under test. The modules of other examples have
    the same names."""
    return run_python(program, **with_lltm(FOLDER), **variables)


@pytest.fixture(scope="module")
def examples():
    return digits.load()


def test_split_is_stratified_and_disjoint(examples):
    training, held_out = examples
    assert (len(training.labels), len(held_out.labels)) == (1437, 360)
    assert torch.bincount(held_out.labels, minlength=10).min() >= 34
    assert held_out.images.min() == 0 and held_out.images.max() == 16
    again = digits.load()[1]
    assert torch.equal(again.images, held_out.images) and torch.equal(again.labels, held_out.labels)


def test_learns_something_in_two_epochs(device, examples):
    training, held_out = (part.to(device) for part in examples)
    model = digits.DigitReader(state_size=32).to(device)
    history = list(digits.train(model, training, held_out, epochs=2))
    assert len(history) == 2
    assert history[1].loss < history[0].loss
    assert history[1].accuracy > 0.3  # guessing gives 0.1


@pytest.mark.parametrize("layer", [lltm.LSTM, lltm.GRU])
def test_scripted_and_saved_model_is_the_same(device, examples, tmp_path, layer):
    images = examples[1].images.to(device)
    model = digits.DigitReader(state_size=32, layer=layer).to(device).eval()
    torch.jit.script(model).save(tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt")
    with torch.inference_mode():
        assert torch.equal(loaded(images), model(images))
    assert torch.equal(digits.predict(loaded, images), digits.predict(model, images))


WRONG_OPTIONS = """
import demo, sys
for options in (["--epochs", "0"], ["--build-dir", "/nowhere"]):
    sys.argv[1:] = options
    try:
        demo.main()
    except SystemExit as error:
        print("status", error.code)
"""


def test_wrong_options_are_errors_before_the_training():
    """In one process, because its imports take most of the time."""
    output = run_with_example(WRONG_OPTIONS)
    messages = [line.partition("error: ")[2] for line in output.splitlines() if "error: " in line]
    assert messages == [
        "--epochs must be 1 or more",
        "--build-dir: the library was not built in /nowhere",
    ]
    assert output.count("status 2") == 2 and "Training" not in output


@pytest.fixture(scope="module")
def model() -> digits.DigitReader:
    torch.manual_seed(0)
    return digits.DigitReader(state_size=16).eval()


@pytest.fixture(scope="module")
def images_file(examples, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("images") / "images.pt"
    torch.save(examples[1]._asdict(), path)
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The folder of the C++ programs. They stay in the build tree for the next run."""
    if not (lltm.library_path.parent / "CMakeCache.txt").exists():
        pytest.skip("the library is not in a build tree, from which it could be installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CMAKE_BUILD_TYPE", "None")  # not optimized: it takes a compiler less time
        return programs.build(lltm.library_path.parent, kept_folder("digits_test", tmp_path_factory.mktemp("build")))


@pytest.fixture
def exported(model, examples, tmp_path, aot_inductor) -> dict[str, Path]:
    """The model's file for each way."""
    for way, name in FILES.items():
        export(model, examples[1].images, way, tmp_path / name)
    return {way: tmp_path / name for way, name in FILES.items()}


def test_cpp_serves_the_model_in_every_way(model, examples, exported, images_file, built):
    """The programs, their agreement with Python, and their errors."""
    images, cpu = examples[1].images, torch.device("cpu")
    with torch.inference_mode():
        expected = model(images)
    for way, file in exported.items():
        logits = programs.classify(built, way, file, images_file, cpu)
        programs.compare(way, logits, expected)
        with pytest.raises(SystemExit, match=f"{way}: C\\+\\+, given the images at once, sees other digits"):
            programs.compare(way, logits, -expected)
        with pytest.raises(SystemExit, match="has logits that differ from Python's by up to 0.01"):
            programs.compare(way, logits, expected + 0.01)

    classify = built / "classify"
    for way, file, device, message in (
        ("onnx", exported["typed"], "cpu", "expected script, package or typed, got onnx"),
        ("package", exported["package"], "meta", "model.pt2 was compiled for cpu, not for meta"),
        ("typed", "missing.pt", "cpu", "cannot read missing.pt"),
    ):
        assert message in run(classify, way, file, images_file, exported["typed"].parent / "logits", device, fails=True)


def test_cpp_serves_a_gru(examples, images_file, built, tmp_path):
    torch.manual_seed(0)
    images, model = examples[1].images, digits.DigitReader(16, lltm.GRU).eval()
    for way in ("script", "typed"):
        export(model, images, way, tmp_path / FILES[way])
        logits = programs.classify(built, way, tmp_path / FILES[way], images_file, torch.device("cpu"))
        with torch.inference_mode():
            programs.compare(way, logits, model(images))


WITHOUT_COMPILER = """
import demo, digits, pathlib, sys, torch
models, missing = demo.export_all(digits.DigitReader(8).eval(), torch.rand(2, 8, 8), pathlib.Path(sys.argv[1]))
print(*sorted(models), "without", *missing, missing["package"])
"""


@pytest.mark.release
def test_without_a_compiler_the_demo_says_that_there_is_no_package(tmp_path):
    program = WITHOUT_COMPILER.replace("sys.argv[1]", repr(str(tmp_path)))
    output = run_with_example(program, CXX="/bin/false", TORCHINDUCTOR_CACHE_DIR=tmp_path / "cache")
    assert "AOTInductor package: No working C++ compiler found" in output
    assert "script typed without package This environment cannot compile one: No working C++ compiler" in output
    assert not (tmp_path / FILES["package"]).exists()
