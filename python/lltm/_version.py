"""The version of lltm, which CMake, the wheel's metadata and the documentation read here."""

VERSION = "0.2.0"
