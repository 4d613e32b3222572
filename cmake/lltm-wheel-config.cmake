# The CMake package of a wheel of lltm for several versions of PyTorch, and of the cache of python -m lltm.build: the
# target lltm::lltm_ops, and add_operator_library().

get_filename_component(_lltm_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(LLTM_SUPPORTED_TORCH "torch>=2.0,<3.0")  # which ones there are libraries for is checked below
include("${CMAKE_CURRENT_LIST_DIR}/OperatorLibrary.cmake")

lltm_find_libtorch(_lltm_error BESIDE "${_lltm_prefix}/../torch")
if(NOT _lltm_error)
  get_target_property(_lltm_torch_version lltm::libtorch LLTM_TORCH_VERSION)
  get_target_property(_lltm_torch_build lltm::libtorch LLTM_TORCH_BUILD)
  get_target_property(_lltm_torch_folder lltm::libtorch LLTM_TORCH_FOLDER)
  get_target_property(_lltm_torch_cuda lltm::libtorch LLTM_TORCH_CUDA)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" _lltm_minor "${_lltm_torch_version}")
  file(GLOB _lltm_kernels RELATIVE "${_lltm_prefix}/lib" "${_lltm_prefix}/lib/liblltm_cuda*.so")
  set(_lltm_kind cpu)
  if(_lltm_kernels AND _lltm_torch_cuda AND NOT LLTM_CPU_ONLY AND NOT "$ENV{LLTM_CPU_ONLY}" STREQUAL "1")
    set(_lltm_kind "cuda${_lltm_torch_cuda}")
    if(NOT "liblltm_${_lltm_kind}.so" IN_LIST _lltm_kernels)
      set(_lltm_error
        "the wheel has ${_lltm_kernels}, and the PyTorch in ${_lltm_torch_folder} has CUDA ${_lltm_torch_cuda}: set LLTM_CPU_ONLY=1, or build from source.")
    endif()
  endif()
  # As for Python: in the cache, for the version that it was built for; in a wheel, for releases of pytorch.org and PyPI,
  # because the ABI of others may differ.
  set(_lltm_library "${_lltm_prefix}/lib/liblltm_ops.so")
  if(EXISTS "${_lltm_library}")
    file(READ "${_lltm_prefix}/lib/liblltm_ops.json" _lltm_info)
    string(JSON _lltm_built_with GET "${_lltm_info}" torch)
    string(REGEX MATCH "^[0-9]+\\.[0-9]+" _lltm_suits "${_lltm_built_with}")
    string(COMPARE EQUAL "${_lltm_suits}" "${_lltm_minor}" _lltm_suits)
  else()
    set(_lltm_library "${_lltm_prefix}/lib/torch-${_lltm_minor}/${_lltm_kind}/liblltm_ops.so")
    set(_lltm_suits FALSE)
    if(EXISTS "${_lltm_library}" AND _lltm_torch_build MATCHES "^[0-9]+\\.[0-9]+\\.[0-9]+(\\+(cpu|cu[0-9]+))?$")
      set(_lltm_suits TRUE)
    endif()
  endif()
  if(NOT _lltm_error AND NOT _lltm_suits)
    set(_lltm_error
      "there is no library for PyTorch ${_lltm_torch_build}, which is in ${_lltm_torch_folder}: run python -m lltm.build, and add its lltm.cmake_prefix_path.")
  endif()
endif()
foreach(_lltm_component IN LISTS lltm_FIND_COMPONENTS)
  if(lltm_FIND_REQUIRED_${_lltm_component})
    set(_lltm_error "the package has no components, and ${_lltm_component} is required.")
  endif()
endforeach()
if(_lltm_error)
  set(lltm_FOUND FALSE)
  set(lltm_NOT_FOUND_MESSAGE "lltm: ${_lltm_error}")
  return()
endif()

if(NOT TARGET lltm::lltm_ops)
  add_library(lltm::lltm_ops SHARED IMPORTED)
  # As add_operator_library() does, it stays linked to programs that use none of its symbols.
  set_target_properties(lltm::lltm_ops PROPERTIES
    IMPORTED_LOCATION "${_lltm_library}"
    INTERFACE_INCLUDE_DIRECTORIES "${_lltm_prefix}/include"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_LINK_LIBRARIES
      "-Wl,--push-state,--no-as-needed,\"${_lltm_library}\",--pop-state;-Wl,-rpath-link,\"${_lltm_prefix}/lib\";lltm::libtorch")
endif()

# Make a later find_package(Torch) use the same libtorch.
if(NOT Torch_DIR)
  set(Torch_DIR "${_lltm_torch_folder}/share/cmake/Torch")
endif()
