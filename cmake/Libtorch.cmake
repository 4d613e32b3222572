# Finds libtorch and defines the target lltm::libtorch, without find_package(Torch).
#
# PyTorch's own CMake package is not used because
# - it fails if PyTorch's wheel was built for CUDA and the machine has no CUDA toolkit;
# - it sets CMAKE_CUDA_ARCHITECTURES to OFF and appends its own -gencode to CMAKE_CUDA_FLAGS;
# - executables link the system's NCCL, which may be older than the wheel's.
# An operator library needs only two include folders and a few shared objects of PyTorch.
#
#   lltm_find_libtorch(<error> [RECORDED <folder>] [BESIDE <folder>])
#
# takes the first libtorch in
#   1. Torch_DIR, Torch_ROOT or CMAKE_PREFIX_PATH (variables, then environment),
#   2. RECORDED and BESIDE, two more folders that may contain a libtorch,
#   3. the folder that Python_EXECUTABLE, else the python3 on PATH, would import torch from, or that Python's prefix,
#      where conda-forge has the headers and the libraries.
# <error> is set to an empty string, or to a sentence that says why there is no target.
# LLTM_SUPPORTED_TORCH gives the supported versions: torch>=2.11.0a0,<2.16.
# The target is visible in the calling directory and below. Its properties:
#   LLTM_TORCH_FOLDER     the folder that contains include/ and lib/
#   LLTM_TORCH_VERSION    such as 2.11.0
#   LLTM_TORCH_BUILD      the version with its local part, such as 2.11.0+cu130, if known
#   LLTM_TORCH_CUDA       the major version of CUDA it was built with, empty for CPU only
#   LLTM_SHARED_LIBSTDCXX the shared libstdc++ to link, empty if the compiler is not GCC
#   LLTM_TORCH_OPENMP     the OpenMP runtime that at::parallel_for uses

include_guard(DIRECTORY)

function(lltm_find_libtorch error_variable)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "RECORDED;BESIDE" "")
  set(${error_variable} "" PARENT_SCOPE)
  if(TARGET lltm::libtorch)
    return()
  endif()

  _lltm_locate_libtorch(folder error "${arg_RECORDED}" "${arg_BESIDE}")
  if(NOT error)
    _lltm_import_libtorch("${folder}" error)
  endif()
  set(${error_variable} "${error}" PARENT_SCOPE)
endfunction()

# The folder of the first libtorch, in the order given above.
function(_lltm_locate_libtorch folder_variable error_variable recorded beside)
  set(${error_variable} "" PARENT_SCOPE)

  foreach(named_folder IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
    if(named_folder) # false for Torch_DIR-NOTFOUND, set by a failed find_package
      if(NOT EXISTS "${named_folder}/TorchConfig.cmake")
        set(${error_variable} "Torch_DIR names ${named_folder}, which contains no TorchConfig.cmake." PARENT_SCOPE)
        return()
      endif()
      get_filename_component(folder "${named_folder}/../../.." REALPATH)
      set(${folder_variable} "${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()

  set(prefixes ${Torch_ROOT} $ENV{Torch_ROOT} ${CMAKE_PREFIX_PATH})
  string(REPLACE ":" ";" environment_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  foreach(prefix IN LISTS prefixes environment_prefixes)
    # A libtorch, torch.utils.cmake_prefix_path, and the folder Torch in the latter.
    foreach(suffix IN ITEMS share/cmake/Torch Torch .)
      if(EXISTS "${prefix}/${suffix}/TorchConfig.cmake")
        get_filename_component(folder "${prefix}/${suffix}/../../.." REALPATH)
        set(${folder_variable} "${folder}" PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()

  set(python python3)
  foreach(executable IN ITEMS "${Python3_EXECUTABLE}" "${Python_EXECUTABLE}")
    if(executable)
      set(python "${executable}")
    endif()
  endforeach()
  # find_spec does not import torch, which would take seconds. The working folder is on Python's
  # search path, so it must not contain a folder named torch.
  execute_process(
    COMMAND "${python}" -c "import importlib.util as u, sys; s = u.find_spec('torch'); print(*([*s.submodule_search_locations, sys.prefix] if s else []), sep=';')"
    WORKING_DIRECTORY "${CMAKE_CURRENT_FUNCTION_LIST_DIR}"
    OUTPUT_VARIABLE of_python OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)

  # Folders that have the headers, too, are preferred to those that have them not.
  foreach(required IN ITEMS include/torch/csrc/api/include/torch/torch.h "")
    foreach(candidate IN LISTS recorded beside of_python)
      if(EXISTS "${candidate}/share/cmake/Torch/TorchConfig.cmake" AND EXISTS "${candidate}/${required}")
        get_filename_component(folder "${candidate}" REALPATH)
        set(${folder_variable} "${folder}" PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()
  set(${error_variable}
    "found no libtorch: neither Torch_DIR nor CMAKE_PREFIX_PATH names one, and ${python} has no torch (pip install torch, or unpack a libtorch and add -DCMAKE_PREFIX_PATH=<its folder>)."
    PARENT_SCOPE)
endfunction()

# Defines lltm::libtorch for the libtorch in a folder.
function(_lltm_import_libtorch folder error_variable)
  set(version "")
  file(STRINGS "${folder}/share/cmake/Torch/TorchConfigVersion.cmake" version_line REGEX "PACKAGE_VERSION \"")
  if(version_line MATCHES "\"([0-9]+\\.[0-9]+)([0-9.]*)")
    set(minor_version "${CMAKE_MATCH_1}")
    set(version "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
  endif()
  string(REGEX MATCH ">=([0-9]+\\.[0-9]+)[^,]*,<([0-9.]+)" range "${LLTM_SUPPORTED_TORCH}")
  if(NOT version OR minor_version VERSION_LESS CMAKE_MATCH_1 OR minor_version VERSION_GREATER_EQUAL CMAKE_MATCH_2)
    set(${error_variable}
      "PyTorch ${version} in ${folder} is not supported: lltm needs ${LLTM_SUPPORTED_TORCH}."
      PARENT_SCOPE)
    return()
  endif()
  foreach(file IN ITEMS lib/libtorch.so lib/libtorch_cpu.so lib/libc10.so include/torch/csrc/api/include/torch/torch.h)
    if(NOT EXISTS "${folder}/${file}")
      set(${error_variable} "the libtorch in ${folder} is incomplete: ${file} is missing." PARENT_SCOPE)
      return()
    endif()
  endforeach()

  set(build "${version}")
  if(EXISTS "${folder}/version.py")
    file(STRINGS "${folder}/version.py" build_line REGEX "^__version__ = ")
  elseif(EXISTS "${folder}/build-version")
    file(STRINGS "${folder}/build-version" build_line LIMIT_COUNT 1)
  endif()
  if(build_line MATCHES "[0-9]+\\.[0-9]+[0-9A-Za-z.+]*")
    set(build "${CMAKE_MATCH_0}")
  endif()

  set(libraries "${folder}/lib/libtorch_cpu.so" "${folder}/lib/libc10.so")
  set(cuda "")
  if(EXISTS "${folder}/lib/libc10_cuda.so")
    list(APPEND libraries "${folder}/lib/libtorch_cuda.so" "${folder}/lib/libc10_cuda.so")
    # In every kind of package, the name of the required CUDA runtime contains the major version.
    file(STRINGS "${folder}/lib/libc10_cuda.so" runtime_name REGEX "^libcudart[-0-9a-f]*\\.so\\.[0-9]+" LIMIT_COUNT 1)
    if(runtime_name MATCHES "\\.so\\.([0-9]+)")
      set(cuda "${CMAKE_MATCH_1}")
    endif()
  endif()

  # A program keeps all of these libraries, even if it does not use their symbols. libtorch.so has none
  # of its own, but loads the CUDA half, which registers itself: if --as-needed drops it, the program
  # finds no GPU. And an operator library finds libc10.so only if the program has loaded it, because a
  # program's RUNPATH does not apply to the dependencies of its libraries.
  # For undefined symbols, linkers look up the libraries that libtorch needs. With -rpath-link they find
  # the wheel's NCCL and the like before the system's older ones.
  # Each is one item without spaces outside of quotes. CMake passes such items on unchanged, in this
  # order, also to programs that link the library through a static library.
  list(JOIN libraries "\",\"" kept)
  set(link_items "-Wl,--push-state,--no-as-needed,\"${folder}/lib/libtorch.so\",\"${kept}\",--pop-state")
  file(GLOB neighbors LIST_DIRECTORIES true "${folder}/../nvidia/*/lib")
  foreach(neighbor IN LISTS neighbors)
    get_filename_component(neighbor "${neighbor}" ABSOLUTE)
    list(APPEND link_items "-Wl,-rpath-link,\"${neighbor}\"")
  endforeach()

  # PyTorch's copy of the OpenMP runtime, if it has one: two runtimes would have two thread pools.
  file(GLOB openmp "${folder}/lib/libgomp*.so*")
  if(NOT openmp)
    set(openmp gomp)
  endif()

  _lltm_find_shared_libstdcxx(libstdcxx)
  list(APPEND libraries ${libstdcxx})

  add_library(lltm::libtorch INTERFACE IMPORTED)
  set_target_properties(lltm::libtorch PROPERTIES
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_INCLUDE_DIRECTORIES "${folder}/include;${folder}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "${link_items};${libraries}"
    LLTM_TORCH_FOLDER "${folder}"
    LLTM_TORCH_VERSION "${version}"
    LLTM_TORCH_BUILD "${build}"
    LLTM_TORCH_CUDA "${cuda}"
    LLTM_SHARED_LIBSTDCXX "${libstdcxx}"
    LLTM_TORCH_OPENMP "${openmp}")
  set(${error_variable} "" PARENT_SCOPE)
endfunction()

# The shared libstdc++. It is linked explicitly because some compilers find a static one first. The process
# would then have a second copy in addition to libtorch's, and a stream that prints a number would crash,
# because its locale belongs to the other copy.
function(_lltm_find_shared_libstdcxx library_variable)
  set(${library_variable} "" PARENT_SCOPE)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  # Prints only the name if the compiler has no such file.
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libstdc++.so.6
    OUTPUT_VARIABLE library OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT IS_ABSOLUTE "${library}")
    unset(library)
    find_library(library NAMES libstdc++.so.6 NO_CACHE
      PATHS /usr/lib/${CMAKE_SYSTEM_PROCESSOR}-linux-gnu /usr/lib64 /usr/lib)
  endif()
  if(library)
    get_filename_component(library "${library}" REALPATH)
    set(${library_variable} "${library}" PARENT_SCOPE)
  endif()
endfunction()
