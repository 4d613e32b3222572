# Builds a library of PyTorch operators from lists of sources.
#
#   add_operator_library(<name>
#     SOURCES <file>...             always compiled
#     [CUDA_SOURCES <file>...]      compiled if CUDA is built: .cu files, and .cpp files that use CUDA's headers
#     [CPU_ONLY_SOURCES <file>...]  compiled instead of CUDA_SOURCES if it is not
#     [TEST_SOURCES <file>...]      GoogleTest cases, compiled if BUILD_TESTING is ON and the project is top-level
#     [OLDEST_ARCHITECTURE <8.0>]   the oldest compute capability that the CUDA code supports
#     [WITH_90A]                    the CUDA code uses instructions that Hopper has in 9.0a only
#   )
#
# builds the shared library lib<name>.so in the project's build folder. The library
# - links libtorch (the C++ part of PyTorch, without Python), found by Libtorch.cmake; its headers are system headers;
# - is compiled by GCC as C++20, and requires C++20 of its users; symbols are hidden unless marked as visible;
# - is a Release build if CMAKE_BUILD_TYPE is unset and the project is top-level; in a part of another project, which
#   keeps its settings, a warning says that the library is not optimized;
# - contains CUDA code if LLTM_CUDA (AUTO, ON, OFF) says so, for CMAKE_CUDA_ARCHITECTURES: see CudaChoice.cmake;
# - runs at::parallel_for on PyTorch's threads, which requires OpenMP in the calling code;
# - is instrumented by the GCC sanitizer named by LLTM_SANITIZER;
# - is compiled with -Wall -Wextra; warnings are errors if LLTM_WERROR is ON;
# - has an RPATH to the libraries next to it and to libtorch; in a wheel (SKBUILD), to the torch that is
#   installed next to the package, if the library is in a folder of the package;
# - stays linked to programs that use none of its symbols, with or without --as-needed: operators
#   register themselves when the library is loaded, and are called by name.
# TEST_SOURCES become the program <name>_test, which links the library and GoogleTest (the system's, or
# else a downloaded one). The caller adds it to ctest. BUILD_TESTING is OFF by default.
#
# Targets can be installed and exported in the usual way; projects that import them need lltm::libtorch,
# which find_package(lltm) defines. Two properties of the target say what was built:
#   OPERATOR_LIBRARY_CUDA           ON or OFF
#   OPERATOR_LIBRARY_ARCHITECTURES  the CUDA architectures, empty if CUDA is OFF
#
# This is a macro only because CMake can enable the language CUDA for a directory, but not in a function.

include_guard(DIRECTORY)
include("${CMAKE_CURRENT_LIST_DIR}/Libtorch.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/CudaChoice.cmake")

macro(add_operator_library name)
  # PyTorch's threads are those of GCC's OpenMP. lltm's CPU kernels also use GCC's vector extensions.
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS 11)
    message(FATAL_ERROR
      "${PROJECT_NAME} needs GCC 11 or newer, but ${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}.")
  endif()
  if(PROJECT_IS_TOP_LEVEL)
    if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
      set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
    endif()
    option(BUILD_TESTING "Build the C++ tests" OFF)
  endif()
  lltm_find_libtorch(_lltm_error)
  if(_lltm_error)
    message(FATAL_ERROR "${PROJECT_NAME}: ${_lltm_error}")
  endif()
  cmake_parse_arguments(_lltm "WITH_90A" "OLDEST_ARCHITECTURE" "SOURCES;CUDA_SOURCES;CPU_ONLY_SOURCES;TEST_SOURCES" ${ARGN})
  set(_lltm_with_cuda OFF)
  if(_lltm_CUDA_SOURCES)
    lltm_choose_cuda(_lltm_with_cuda "${_lltm_OLDEST_ARCHITECTURE}" "${_lltm_WITH_90A}")
  endif()
  _lltm_add_operator_library(${name} ${_lltm_with_cuda} ${ARGN})
endmacro()

function(_lltm_add_operator_library name with_cuda)
  cmake_parse_arguments(PARSE_ARGV 2 arg
    "WITH_90A" "OLDEST_ARCHITECTURE" "SOURCES;CUDA_SOURCES;CPU_ONLY_SOURCES;TEST_SOURCES")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR
      "add_operator_library(${name}): expected SOURCES, CUDA_SOURCES, CPU_ONLY_SOURCES and TEST_SOURCES, got ${ARGN}.")
  endif()
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND NOT CMAKE_CXX_FLAGS MATCHES "(^| )-O")
    message(WARNING
      "${PROJECT_NAME}: CMAKE_BUILD_TYPE is not set, so ${name} is compiled without optimization and is many times slower. Configure with -DCMAKE_BUILD_TYPE=Release.")
  endif()
  get_target_property(torch_folder lltm::libtorch LLTM_TORCH_FOLDER)
  get_target_property(libstdcxx lltm::libtorch LLTM_SHARED_LIBSTDCXX)
  get_target_property(openmp lltm::libtorch LLTM_TORCH_OPENMP)

  if(with_cuda)
    add_library(${name} SHARED ${arg_SOURCES} ${arg_CUDA_SOURCES})
    set_source_files_properties(${arg_CUDA_SOURCES} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  else()
    add_library(${name} SHARED ${arg_SOURCES} ${arg_CPU_ONLY_SOURCES})
  endif()
  set_target_properties(${name} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}"
    CXX_VISIBILITY_PRESET hidden
    CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    CXX_EXTENSIONS OFF
    CUDA_EXTENSIONS OFF
    OPERATOR_LIBRARY_CUDA ${with_cuda}
    OPERATOR_LIBRARY_ARCHITECTURES ""
    EXPORT_PROPERTIES "OPERATOR_LIBRARY_CUDA;OPERATOR_LIBRARY_ARCHITECTURES")

  # The library itself only links what it uses of libtorch, so that a library without CUDA works with any
  # build of that PyTorch. Users of the library link all of lltm::libtorch.
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} SYSTEM PRIVATE
    "$<TARGET_PROPERTY:lltm::libtorch,INTERFACE_INCLUDE_DIRECTORIES>")
  target_link_libraries(${name}
    PRIVATE "${torch_folder}/lib/libtorch_cpu.so" "${torch_folder}/lib/libc10.so" ${openmp} ${libstdcxx}
    INTERFACE
      # One item without spaces outside of quotes: see Libtorch.cmake.
      "-Wl,--push-state,--no-as-needed,\"$<TARGET_FILE:$<TARGET_NAME:${name}>>\",--pop-state"
      lltm::libtorch)
  target_link_options(${name} PRIVATE LINKER:-z,defs)

  if(SKBUILD)
    set_property(TARGET ${name} PROPERTY INSTALL_RPATH "$ORIGIN;$ORIGIN/../../torch/lib")
  else()
    set_property(TARGET ${name} PROPERTY INSTALL_RPATH "$ORIGIN;${torch_folder}/lib")
  endif()
  set_property(TARGET ${name} PROPERTY BUILD_RPATH "$ORIGIN")

  # Without this, at::parallel_for, a template, would run everything in the calling thread.
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-fopenmp>")

  set(warnings -Wall -Wextra $<$<BOOL:${LLTM_WERROR}>:-Werror>)
  # GCC's flow analysis reports these two for PyTorch's headers and its own, inlined into our code: GCC 13
  # in std::vector<bool>::reserve.
  list(APPEND warnings -Wno-error=array-bounds -Wno-error=stringop-overflow)
  if(CMAKE_UNITY_BUILD)
    list(APPEND warnings -Wno-subobject-linkage)  # it treats included sources as headers
  endif()
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")

  set(sanitizer "")
  if(LLTM_SANITIZER)
    # -Wno-tsan: GCC warns that ThreadSanitizer does not see fences, such as those in PyTorch's reference counts.
    set(sanitizer -fsanitize=${LLTM_SANITIZER} -fno-omit-frame-pointer -g1 -Wno-tsan)
    if(LLTM_SANITIZER MATCHES "undefined")
      # Two checks that it does not include. vptr is left out because it needs type information that PyTorch hides.
      list(APPEND sanitizer -fsanitize=float-divide-by-zero,float-cast-overflow -fno-sanitize=vptr)
      if(NOT LLTM_SANITIZER MATCHES "address")
        # Otherwise GCC 12 does not accept that the address of a function is a non-null constant, which PyTorch's
        # headers assert. Access through a null pointer crashes anyway.
        list(APPEND sanitizer -fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute)
      endif()
    endif()
  endif()
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${sanitizer}>")
  target_link_options(${name} PRIVATE ${sanitizer})

  if(with_cuda)
    find_package(CUDAToolkit REQUIRED)
    # The static CUDA runtime hides its symbols, and frees the library from depending on a toolkit:
    # PyTorch's packages use different names for the shared runtime.
    set_target_properties(${name} PROPERTIES
      CUDA_STANDARD 20
      CUDA_STANDARD_REQUIRED ON
      CUDA_RUNTIME_LIBRARY Static
      CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}"
      OPERATOR_LIBRARY_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
    target_link_libraries(${name} PRIVATE
      "${torch_folder}/lib/libtorch_cuda.so" "${torch_folder}/lib/libc10_cuda.so" CUDA::cudart_static)
    set(cuda_warnings -Xcompiler=-Wall,-Wextra)
    if(LLTM_WERROR)
      list(APPEND cuda_warnings -Xcompiler=-Werror -Werror=all-warnings)
    endif()
    target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_warnings}>")
  endif()

  if(PROJECT_IS_TOP_LEVEL AND BUILD_TESTING AND arg_TEST_SOURCES)
    _lltm_find_googletest()
    add_executable(${name}_test ${arg_TEST_SOURCES})
    set_target_properties(${name}_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
    target_link_libraries(${name}_test PRIVATE ${name} GTest::gtest_main)
    target_compile_options(${name}_test PRIVATE ${warnings} ${sanitizer})
    target_link_options(${name}_test PRIVATE ${sanitizer})
  endif()
endfunction()

function(_lltm_find_googletest)
  find_package(GTest QUIET)
  if(NOT TARGET GTest::gtest_main)
    message(STATUS "${PROJECT_NAME}: fetching GoogleTest, which the system does not have")
    include(FetchContent)
    set(INSTALL_GTEST OFF CACHE BOOL "GoogleTest is for the tests alone" FORCE)
    FetchContent_Declare(googletest
      URL https://github.com/google/googletest/releases/download/v1.17.0/googletest-1.17.0.tar.gz
      URL_HASH SHA256=65fab701d9829d38cb77c14acdc431d2108bfdbf8979e40eb8ae567edf10b27c)
    FetchContent_MakeAvailable(googletest)
  endif()
endfunction()
