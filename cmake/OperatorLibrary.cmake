# A library of PyTorch operators out of lists of sources.
#
#   add_operator_library(<name>
#     SOURCES <file>...             compiled always
#     [CUDA_SOURCES <file>...]      compiled where CUDA is built: .cu, and .cpp that use CUDA's headers
#     [CPU_ONLY_SOURCES <file>...]  compiled instead of CUDA_SOURCES where it is not
#     [TEST_SOURCES <file>...]      GoogleTest cases, compiled where BUILD_TESTING is ON in a project of its own
#   )
#
# makes the shared library lib<name>.so, in the project's build folder. It
# - links libtorch (PyTorch's C++ half, no Python), found as Libtorch.cmake says; headers of PyTorch count as the system's;
# - is compiled as C++20 and asks the same of whoever links it; symbols are hidden unless marked as visible;
# - is a Release build where CMAKE_BUILD_TYPE says nothing and the project is no part of another;
# - gets CUDA code where LLTM_CUDA (AUTO, ON, OFF) says so, for CMAKE_CUDA_ARCHITECTURES, as CudaChoice.cmake says;
# - runs at::parallel_for on PyTorch's threads, which needs OpenMP in the code that calls it;
# - is instrumented by GCC's sanitizer that LLTM_SANITIZER names;
# - warns with -Wall -Wextra, and where LLTM_WERROR is ON takes a warning for an error;
# - has an RPATH to the libraries beside it and to libtorch; in a wheel (SKBUILD) to the torch that is
#   installed beside the package;
# - stays linked to a program that names none of its symbols, with or without --as-needed: operators
#   register themselves when the library is loaded, and are called by name.
# TEST_SOURCES become the program <name>_test, which links the library, and GoogleTest: the system's,
# else a fetched one. How ctest runs it is for the caller to say. BUILD_TESTING is OFF by default.
#
# Targets can be installed and exported in the usual way; who imports them needs lltm::libtorch, which
# find_package(lltm) makes. Two properties of the target say what was built:
#   OPERATOR_LIBRARY_CUDA           ON or OFF
#   OPERATOR_LIBRARY_ARCHITECTURES  CUDA architectures, empty where CUDA is OFF
#
# It is a macro in form alone: CMake can enable the language CUDA for a directory, not in a function.

include_guard(DIRECTORY)
include("${CMAKE_CURRENT_LIST_DIR}/Libtorch.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/CudaChoice.cmake")

macro(add_operator_library name)
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
  set(_lltm_with_cuda OFF)
  if(";${ARGN};" MATCHES ";CUDA_SOURCES;")
    lltm_choose_cuda(_lltm_with_cuda)
  endif()
  _lltm_add_operator_library(${name} ${_lltm_with_cuda} ${ARGN})
endmacro()

function(_lltm_add_operator_library name with_cuda)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "SOURCES;CUDA_SOURCES;CPU_ONLY_SOURCES;TEST_SOURCES")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR
      "add_operator_library(${name}): expected SOURCES, CUDA_SOURCES, CPU_ONLY_SOURCES and TEST_SOURCES, got ${ARGN}.")
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

  # The library itself needs no more of libtorch than it uses, so that one built without CUDA works with
  # any build of that PyTorch. Who links the library gets all of lltm::libtorch.
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} SYSTEM PRIVATE
    "$<TARGET_PROPERTY:lltm::libtorch,INTERFACE_INCLUDE_DIRECTORIES>")
  target_link_libraries(${name}
    PRIVATE "${torch_folder}/lib/libtorch_cpu.so" "${torch_folder}/lib/libc10.so" ${openmp} ${libstdcxx}
    INTERFACE
      # One item with no space outside quotes, for the reasons that Libtorch.cmake gives.
      "-Wl,--push-state,--no-as-needed,\"$<TARGET_FILE:$<TARGET_NAME:${name}>>\",--pop-state"
      lltm::libtorch)
  target_link_options(${name} PRIVATE LINKER:-z,defs)

  if(SKBUILD)
    set_property(TARGET ${name} PROPERTY INSTALL_RPATH "$ORIGIN;$ORIGIN/../../torch/lib")
  else()
    set_property(TARGET ${name} PROPERTY INSTALL_RPATH "$ORIGIN;${torch_folder}/lib")
  endif()
  set_property(TARGET ${name} PROPERTY BUILD_RPATH "$ORIGIN")

  # at::parallel_for is a template that without this runs everything in the calling thread.
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-fopenmp>")

  set(warnings -Wall -Wextra $<$<BOOL:${LLTM_WERROR}>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's flow analysis finds these two in PyTorch's and its own headers, inlined into our code: GCC 13
    # in std::vector<bool>::reserve.
    list(APPEND warnings -Wno-error=array-bounds -Wno-error=stringop-overflow)
    if(CMAKE_UNITY_BUILD)
      list(APPEND warnings -Wno-subobject-linkage)  # which takes included sources for headers
    endif()
  endif()
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")

  set(sanitizer "")
  if(LLTM_SANITIZER)
    # ThreadSanitizer sees no fences, such as those in PyTorch's reference counts, and GCC says so.
    set(sanitizer -fsanitize=${LLTM_SANITIZER} -fno-omit-frame-pointer -g1 -Wno-tsan)
    if(LLTM_SANITIZER MATCHES "undefined")
      # Two that it leaves out, and without one that asks for type information which PyTorch hides.
      list(APPEND sanitizer -fsanitize=float-divide-by-zero,float-cast-overflow -fno-sanitize=vptr)
      if(NOT LLTM_SANITIZER MATCHES "address")
        # GCC 12 then takes no function's address for a constant other than null, which PyTorch's headers assert. Who
        # reads or writes through null dies anyway.
        list(APPEND sanitizer -fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute)
      endif()
    endif()
  endif()
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${sanitizer}>")
  target_link_options(${name} PRIVATE ${sanitizer})

  if(with_cuda)
    find_package(CUDAToolkit REQUIRED)
    # The static CUDA runtime hides its symbols, and leaves the library without a dependency on a
    # toolkit: PyTorch's packages disagree on the name of the shared one.
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
