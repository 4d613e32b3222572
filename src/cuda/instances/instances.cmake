# The kernels that are templates of an arithmetic, and what each is compiled for: one file per
# instance, so that they compile in parallel. Sets LLTM_CUDA_INSTANCES to the files.
set(LLTM_CUDA_INSTANCES)

function(lltm_instances kernel)
  foreach(ARITHMETIC IN LISTS ARGN)
    string(REGEX REPLACE "^k" "_" suffix "${ARITHMETIC}")
    string(TOLOWER "${suffix}" suffix)
    set(file "${PROJECT_BINARY_DIR}/generated/cuda/${kernel}${suffix}.cu")
    configure_file("${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${kernel}.cu.in" "${file}" @ONLY)
    list(APPEND LLTM_CUDA_INSTANCES "${file}")
  endforeach()
  set(LLTM_CUDA_INSTANCES "${LLTM_CUDA_INSTANCES}" PARENT_SCOPE)
endfunction()

lltm_instances(forward_tiles kFloat32 kTf32 kFloat16 kBFloat16)
lltm_instances(forward_wgmma kFloat32 kTf32 kFloat16 kBFloat16)
lltm_instances(step_tiles kFloat32 kTf32 kFloat16 kBFloat16)
lltm_instances(step_wgmma kFloat32 kTf32 kFloat16 kBFloat16)
lltm_instances(backward_tiles kFloat32 kTf32 kFloat16 kBFloat16)
lltm_instances(backward_wgmma kTf32 kFloat16 kBFloat16)
lltm_instances(sequence_gradient_tiles kFloat32 kTf32 kFloat16 kBFloat16)
