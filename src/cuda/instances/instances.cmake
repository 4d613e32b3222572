# The kernels in .cuh files, which are templates of an arithmetic, and what each is compiled for: one file per
# arithmetic, so that they compile in parallel, or one for all in a unity build, because half of the time goes into
# reading the headers. Sets LLTM_CUDA_INSTANCES to the files.
set(LLTM_CUDA_INSTANCES)

# .ci/run compiles each template for some of its arithmetics, because all of them take as long as everything else. In
# such a library, the functions for the others return cudaErrorNotSupported.
set(LLTM_ARITHMETICS kFloat32 kTf32 kFloat16 kBFloat16)
set(LLTM_CUDA_ARITHMETICS ${LLTM_ARITHMETICS} CACHE STRING
  "The arithmetics that templates of CUDA kernels are compiled for: fewer only to check the code, for a machine without a GPU")
foreach(arithmetic IN LISTS LLTM_CUDA_ARITHMETICS)
  if(NOT arithmetic IN_LIST LLTM_ARITHMETICS)
    list(JOIN LLTM_ARITHMETICS " " all)
    message(FATAL_ERROR "expected LLTM_CUDA_ARITHMETICS to be among ${all}, got ${arithmetic}.")
  endif()
endforeach()

# lltm_instances(<name> <header> ARITHMETICS <arithmetic>... FUNCTIONS <function>...)
# A function is written as its name and parameters; @A@ stands for the arithmetic.
function(lltm_instances name HEADER)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "ARITHMETICS;FUNCTIONS")
  set(DEFINITIONS "")
  list(GET arg_ARITHMETICS -1 last)
  foreach(arithmetic IN LISTS arg_ARITHMETICS)
    set(A "Arithmetic::${arithmetic}")
    foreach(signature IN LISTS arg_FUNCTIONS)
      string(CONFIGURE "cudaError_t ${signature}" function @ONLY)
      if(arithmetic IN_LIST LLTM_CUDA_ARITHMETICS)
        string(APPEND DEFINITIONS "template ${function};\n")
      else()
        string(APPEND DEFINITIONS "template <> ${function} { return cudaErrorNotSupported; }\n")
      endif()
    endforeach()
    if(CMAKE_UNITY_BUILD)
      if(NOT arithmetic STREQUAL last)
        continue()
      endif()
      set(file "${name}")
    else()
      string(REGEX REPLACE "^k" "_" suffix "${arithmetic}")
      string(TOLOWER "${name}${suffix}" file)
    endif()
    configure_file("${CMAKE_CURRENT_FUNCTION_LIST_DIR}/instance.cu.in"
      "${PROJECT_BINARY_DIR}/generated/cuda/${file}.cu" @ONLY)
    list(APPEND LLTM_CUDA_INSTANCES "${PROJECT_BINARY_DIR}/generated/cuda/${file}.cu")
    set(DEFINITIONS "")
  endforeach()
  set(LLTM_CUDA_INSTANCES "${LLTM_CUDA_INSTANCES}" PARENT_SCOPE)
endfunction()

lltm_instances(forward_tiles forward/tiles.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
  "launch_forward_tiles<@A@>(const ForwardProblem&, const TileShape&, int, cudaStream_t)")
lltm_instances(forward_wgmma forward/wgmma.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
  "launch_forward_wgmma<@A@, cell::Lltm>(const ForwardProblem&, const TileShape&, int, cudaStream_t)")
lltm_instances(one_step_wgmma forward/wgmma.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
  "launch_forward_wgmma<@A@, cell::Lstm>(const OneStepProblem&, const TileShape&, int, cudaStream_t)")
lltm_instances(step_tiles forward/tiles.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
  "launch_forward_tiles<@A@>(const StepProblem&, const TileShape&, int, cudaStream_t)")
lltm_instances(step_wgmma forward/wgmma.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
  "launch_forward_wgmma<@A@, cell::Lltm>(const StepProblem&, const TileShape&, int, cudaStream_t)")
lltm_instances(backward_tiles backward/tiles.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
  "launch_backward_tiles<@A@>(const BackwardProblem&, const GradientPlan&, cudaStream_t)")
lltm_instances(backward_wgmma backward/wgmma_launch.cuh ARITHMETICS kTf32 kFloat16 kBFloat16 FUNCTIONS
  "launch_backward_wgmma<@A@>(const BackwardProblem&, const GradientPlan&, float*, cudaStream_t)")
lltm_instances(lstm_step_wgmma forward/wgmma.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
  "launch_forward_wgmma<@A@, cell::Lstm>(const StepProblem&, const TileShape&, int, cudaStream_t)")
foreach(cell Lltm Lstm Gru)
  string(TOLOWER "${cell}" prefix)
  lltm_instances(${prefix}_recurrence_forward_fma recurrence/fma_forward.cuh ARITHMETICS kFloat32 FUNCTIONS
    "launch_recurrence_fma<cell::${cell}>(const RecurrenceForward<float>&, const RecurrenceTile&, cudaStream_t)")
  lltm_instances(${prefix}_recurrence_backward_fma recurrence/fma_backward.cuh ARITHMETICS kFloat32 FUNCTIONS
    "launch_recurrence_fma<cell::${cell}>(const RecurrenceBackward<float>&, const RecurrenceTile&, cudaStream_t)")
  lltm_instances(${prefix}_recurrence_forward_mma recurrence/mma_forward.cuh ARITHMETICS kFloat16 kBFloat16 FUNCTIONS
    "launch_recurrence_mma<cell::${cell}>(const RecurrenceForward<TensorElement<@A@>>&, const RecurrenceTile&, cudaStream_t)")
  lltm_instances(${prefix}_recurrence_backward_mma recurrence/mma_backward.cuh ARITHMETICS kFloat16 kBFloat16 FUNCTIONS
    "launch_recurrence_mma<cell::${cell}>(const RecurrenceBackward<TensorElement<@A@>>&, const RecurrenceTile&, cudaStream_t)")
  lltm_instances(${prefix}_recurrence_forward_grid grid/forward.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
    "launch_recurrence_grid<cell::${cell}, @A@>(const OfGrid<RecurrenceForward<TensorElement<@A@>>>&,
      const GridTile&, bool, cudaStream_t)")
  lltm_instances(${prefix}_recurrence_backward_grid grid/backward.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
    "launch_recurrence_grid<cell::${cell}, @A@>(const OfGrid<RecurrenceBackward<TensorElement<@A@>>>&,
      const GridTile&, cudaStream_t)")
  if(cell STREQUAL "Gru") # what blocks have no room for runs step by step
    set(CELL "#include \"cell/combined.h\"\n#include \"cell/gru.h\"\n\n")
    lltm_instances(gru_sequence_gradient_wgmma sequence/gradient_wgmma.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
      "launch_sequence_gradient_wgmma<cell::Combined<cell::Gru>, @A@>(const SequenceGradientsParams<TensorElement<@A@>>&,
        const Matrix&, const TileShape&, int, cudaStream_t)")
    lltm_instances(gru_step_wgmma forward/wgmma.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
      "launch_forward_wgmma<@A@, cell::Gru>(const StepProblem&, const TileShape&, int, cudaStream_t)")
    lltm_instances(gru_step_x_wgmma forward/wgmma.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
      "launch_forward_wgmma<@A@, cell::Combined<cell::Gru>>(const StepProblem&, const TileShape&, int, cudaStream_t)")
    lltm_instances(gru_one_step_wgmma forward/wgmma.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
      "launch_forward_wgmma<@A@, cell::Gru>(const OneStepProblem&, const TileShape&, int, cudaStream_t)")
    unset(CELL)
    continue()
  endif()
  lltm_instances(${prefix}_sequence_gradient_wgmma sequence/gradient_wgmma.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
    "launch_sequence_gradient_wgmma<cell::${cell}, @A@>(const SequenceGradientsParams<TensorElement<@A@>>&,
      const Matrix&, const TileShape&, int, cudaStream_t)")
endforeach()
lltm_instances(sequence_gradient_tiles sequence/gradient_tiles.cuh ARITHMETICS ${LLTM_ARITHMETICS} FUNCTIONS
  "launch_sequence_gradient_tiles<@A@>(const SequenceGradientsParams<TensorElement<@A@>>&,
    const Matrix&, const TileShape&, int, cudaStream_t)")
