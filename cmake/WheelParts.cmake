# What make wheel compiles once for all versions of PyTorch, in the target lltm_wheel_parts: the kernels of the CPU,
# liblltm_cpu.so, and those of CUDA, liblltm_cuda13.so for CUDA 13. glue.json says what python/lltm/build.py compiles
# for each version, and links with them.

function(_lltm_add_kernel_library name)
  add_library(${name} SHARED EXCLUDE_FROM_ALL ${ARGN})
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_include_directories(${name} PRIVATE ${PROJECT_BINARY_DIR}/generated ${PROJECT_SOURCE_DIR}/src)
  # For the types c10::Half and c10::BFloat16, which are the same in every version.
  target_include_directories(${name} SYSTEM PRIVATE
    $<TARGET_PROPERTY:lltm::libtorch,INTERFACE_INCLUDE_DIRECTORIES>)
  target_link_options(${name} PRIVATE LINKER:-z,defs)
  set_target_properties(${name} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/wheel-parts"
    UNITY_BUILD OFF
    CXX_EXTENSIONS OFF
    CUDA_EXTENSIONS OFF)
  add_dependencies(lltm_wheel_parts ${name})
endfunction()

add_custom_target(lltm_wheel_parts)
_lltm_add_kernel_library(lltm_cpu ${LLTM_CPU_KERNELS})
set_target_properties(lltm_cpu PROPERTIES LINKER_LANGUAGE CXX) # also of objects alone
if(built_with_cuda)
  _lltm_add_kernel_library(lltm_cuda ${LLTM_CUDA_KERNELS} src/wheel/moved_in_glibc_2_34.cpp)
  set_target_properties(lltm_cuda PROPERTIES
    OUTPUT_NAME lltm_cuda${LLTM_PACKAGE_CUDA}
    CUDA_STANDARD 20
    CUDA_STANDARD_REQUIRED ON
    CUDA_RUNTIME_LIBRARY Static
    CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
  target_link_libraries(lltm_cuda PRIVATE CUDA::cudart_static)
endif()

function(_lltm_json_list variable)
  list(TRANSFORM ARGN REPLACE ".+" "\"\\0\"" OUTPUT_VARIABLE quoted)
  list(JOIN quoted ", " quoted)
  set(${variable} "${quoted}" PARENT_SCOPE)
endfunction()
# Those of the target lltm_ops in a release, but -O2: calls take as long as with -O3, and the glue is an eighth smaller.
string(REPLACE "-O3" "-O2" flags "${CMAKE_CXX_FLAGS_RELEASE}")
separate_arguments(flags UNIX_COMMAND
  "${CMAKE_CXX20_STANDARD_COMPILE_OPTION} ${flags} ${CMAKE_CXX_COMPILE_OPTIONS_PIC} -fopenmp")
list(APPEND flags
  ${CMAKE_CXX_COMPILE_OPTIONS_VISIBILITY}hidden ${CMAKE_CXX_COMPILE_OPTIONS_VISIBILITY_INLINES_HIDDEN})
_lltm_json_list(LLTM_JSON_FLAGS ${flags})
_lltm_json_list(LLTM_JSON_GLUE ${LLTM_GLUE} src/wheel/newer_in_headers.cpp)
_lltm_json_list(LLTM_JSON_CUDA_GLUE ${LLTM_CUDA_GLUE})
_lltm_json_list(LLTM_JSON_CPU_ONLY_GLUE ${LLTM_CPU_ONLY_GLUE})
configure_file(cmake/glue.json.in wheel-parts/glue.json @ONLY)
