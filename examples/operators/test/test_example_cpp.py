"""The operators from C++: runs the program that CMake builds from test_typed_calls.cpp."""

import subprocess


def test_typed_calls(library):
    process = subprocess.run([library.parent / "example_ops_test"], capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "[  PASSED  ] 2 tests." in process.stdout
