# Decides whether CUDA code is built, and for which architectures.
#
#   lltm_choose_cuda(<enabled> <oldest architecture> <with 90a>)
#
# sets <enabled>, and enables the language CUDA if it is ON. Reads
#   LLTM_CUDA                 AUTO (the default): build CUDA code if a matching nvcc is found, and a GPU is present or
#                             architectures are given; if not, one line says why. ON: fail if there is no nvcc. OFF: do
#                             not build CUDA code. CMake's other booleans (YES, 1, no, ...) are ON and OFF, too.
#   CMAKE_CUDA_ARCHITECTURES  (or CUDAARCHS in the environment), else TORCH_CUDA_ARCH_LIST (variable or
#                             environment): the architectures.
#                             Default: that of the GPU that is present; without one, if LLTM_CUDA is ON, LLTM_EVERY_GPU.
# Architectures older than the oldest, such as 8.0, are left out with a warning; it is an error if no other is given. With
# 90a, that is built wherever 9.0 is asked for, because code for 9.0 does not contain Hopper's own instructions. 90a means
# 90a-real. Needs lltm::libtorch. This is a macro because CMake enables languages in a directory, not in a function.

include_guard(DIRECTORY)
include(CheckLanguage)

set(LLTM_OLDEST_CUDA 12.8)
# Machine code for the GPUs of 8.x and Hopper, and PTX for all later ones: that of 90, so that they have clusters.
set(LLTM_EVERY_GPU 80-real 90-virtual 90a-real)

macro(lltm_choose_cuda enabled_variable oldest_architecture with_90a)
  if(NOT DEFINED LLTM_CUDA) # With policy CMP0126 unset, set() would replace a normal variable.
    set(LLTM_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO, ON or OFF")
    set_property(CACHE LLTM_CUDA PROPERTY STRINGS AUTO ON OFF)
  endif()
  string(TOUPPER "${LLTM_CUDA}" _lltm_choice)
  if(_lltm_choice MATCHES "^(ON|YES|TRUE|Y|1)$")
    set(_lltm_choice ON)
  elseif(_lltm_choice MATCHES "^(OFF|NO|FALSE|N|0)$")
    set(_lltm_choice OFF)
  elseif(NOT _lltm_choice STREQUAL "AUTO")
    message(FATAL_ERROR "expected LLTM_CUDA to be AUTO, ON or OFF, got ${LLTM_CUDA}.")
  endif()

  set(${enabled_variable} OFF)
  if(NOT _lltm_choice STREQUAL "OFF")
    _lltm_find_cuda_obstacle(_lltm_obstacle _lltm_nvcc)
    if(NOT _lltm_obstacle)
      _lltm_choose_cuda_architectures(CMAKE_CUDA_ARCHITECTURES _lltm_obstacle
        "${_lltm_choice}" "${oldest_architecture}" "${with_90a}")
    endif()
    if(NOT _lltm_obstacle)
      if(NOT CMAKE_CUDA_COMPILER)
        unset(CMAKE_CUDA_COMPILER CACHE) # -NOTFOUND from an earlier configuration
        set(ENV{CUDACXX} "${_lltm_nvcc}")
        check_language(CUDA)
      endif()
      if(CMAKE_CUDA_COMPILER)
        enable_language(CUDA)
        if(NOT "cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
          set(_lltm_obstacle
            "CMake ${CMAKE_VERSION} does not know C++20 for nvcc ${CMAKE_CUDA_COMPILER_VERSION}; a newer CMake does (pip install cmake)")
        endif()
      else()
        set(_lltm_obstacle
          "${_lltm_nvcc} does not compile with CMake ${CMAKE_VERSION} and ${CMAKE_CXX_COMPILER} (CMake's log in ${CMAKE_BINARY_DIR}/CMakeFiles says why)")
      endif()
    endif()

    if(NOT _lltm_obstacle)
      set(${enabled_variable} ON)
      # Remove what a find_package(Torch) of the caller appended: the user chooses the architectures.
      string(REGEX REPLACE "-gencode[ ;=]+arch=[^ ;]+" "" CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS}")
      # Four times smaller. A driver decompresses the kernels of a source file when it loads them; older ones than that
      # of CUDA 12.4 cannot, but no longer run what nvcc 13 builds.
      if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
        set(CMAKE_CUDA_FLAGS "--compress-mode=size ${CMAKE_CUDA_FLAGS}")
      endif()
    elseif(_lltm_choice STREQUAL "ON")
      message(FATAL_ERROR "LLTM_CUDA is ON, but ${_lltm_obstacle}.")
    else()
      message(STATUS "${PROJECT_NAME}: building for the CPU only: ${_lltm_obstacle}.")
    endif()
  endif()
endmacro()

# Says in one sentence why CUDA code cannot be built, or sets an empty string. Also finds nvcc.
function(_lltm_find_cuda_obstacle obstacle_variable nvcc_variable)
  get_target_property(torch_cuda lltm::libtorch LLTM_TORCH_CUDA)
  get_target_property(torch_build lltm::libtorch LLTM_TORCH_BUILD)
  get_target_property(torch_folder lltm::libtorch LLTM_TORCH_FOLDER)

  set(named_by "")
  if(CMAKE_CUDA_COMPILER)
    set(nvcc "${CMAKE_CUDA_COMPILER}")
    set(named_by " (CMAKE_CUDA_COMPILER names it)")
  elseif(DEFINED ENV{CUDACXX})
    set(nvcc "$ENV{CUDACXX}")
    set(named_by " (CUDACXX names it)")
  else()
    find_program(nvcc nvcc NO_CACHE
      HINTS "${CUDAToolkit_ROOT}" ENV CUDAToolkit_ROOT ENV CUDA_HOME ENV CUDA_PATH
      PATHS /usr/local/cuda PATH_SUFFIXES bin)
  endif()
  set(${nvcc_variable} "${nvcc}" PARENT_SCOPE)

  set(obstacle "")
  if(NOT torch_cuda)
    set(obstacle "PyTorch ${torch_build} in ${torch_folder} was built without CUDA")
  elseif(NOT nvcc)
    set(obstacle "there is no nvcc on PATH or in CUDA_HOME (CMAKE_CUDA_COMPILER can name one)")
  else()
    execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE output ERROR_QUIET RESULT_VARIABLE result)
    if(output MATCHES "release ([0-9]+)\\.([0-9]+)")
      set(release "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
      if(release VERSION_LESS LLTM_OLDEST_CUDA)
        set(obstacle "${nvcc} is from CUDA ${release}, but ${LLTM_OLDEST_CUDA} or newer is needed")
      elseif(NOT CMAKE_MATCH_1 EQUAL torch_cuda)
        set(obstacle "${nvcc} is from CUDA ${release}, but PyTorch ${torch_build} was built with CUDA ${torch_cuda}")
      endif()
    elseif(result EQUAL 0)
      set(obstacle "the output of ${nvcc} --version contains no release${named_by}")
    else()
      set(obstacle "${nvcc} cannot be run${named_by}")
    endif()
  endif()
  set(${obstacle_variable} "${obstacle}" PARENT_SCOPE)
endfunction()

# Sets the architectures, or says in one sentence why the code cannot be built for the GPU that is present.
function(_lltm_choose_cuda_architectures architectures_variable obstacle_variable choice oldest with_90a)
  set(${obstacle_variable} "" PARENT_SCOPE)
  set(list "${TORCH_CUDA_ARCH_LIST}")
  if(NOT list)
    set(list "$ENV{TORCH_CUDA_ARCH_LIST}")
  endif()
  set(given_by "")
  if(CMAKE_CUDA_ARCHITECTURES) # OFF is set by find_package(Torch), not by the user
    set(given_by CMAKE_CUDA_ARCHITECTURES)
    set(architectures "${CMAKE_CUDA_ARCHITECTURES}")
  elseif(DEFINED ENV{CUDAARCHS}) # CMake's environment variable
    set(given_by CUDAARCHS)
    set(architectures "$ENV{CUDAARCHS}")
  elseif(list)
    set(given_by TORCH_CUDA_ARCH_LIST)
    _lltm_read_torch_cuda_arch_list(architectures "${list}")
  else()
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE capabilities ERROR_QUIET RESULT_VARIABLE result)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${capabilities}")
    if(result EQUAL 0 AND capabilities)
      list(REMOVE_DUPLICATES capabilities)
      string(REPLACE "." "" architectures "${capabilities}")
      # Hopper's wgmma instructions are only in 90a.
      list(TRANSFORM architectures REPLACE "^90$" "90a")
    elseif(choice STREQUAL "AUTO")
      set(${obstacle_variable}
        "this machine has no GPU, and no architecture was asked for (CUDA=1 for make, or LLTM_CUDA=ON, builds the CUDA code all the same)"
        PARENT_SCOPE)
      return()
    else()
      set(architectures ${LLTM_EVERY_GPU})
    endif()
  endif()

  set(kept "")
  set(left_out "")
  foreach(architecture IN LISTS architectures)
    string(REGEX REPLACE "^([0-9]+)([0-9]).*" "\\1.\\2" capability "${architecture}")
    if(oldest AND capability MATCHES "^[0-9.]+$" AND capability VERSION_LESS oldest)
      list(APPEND left_out "${capability}")
    else()
      list(APPEND kept "${architecture}")
    endif()
  endforeach()
  if(left_out)
    list(JOIN left_out ", " left_out)
    if(kept)
      message(WARNING "${PROJECT_NAME}: the CUDA code needs ${oldest} or newer: leaving out ${left_out}.")
    elseif(given_by)
      message(FATAL_ERROR "${PROJECT_NAME}: ${given_by}: the CUDA code needs ${oldest} or newer, got ${left_out}.")
    else()
      set(${obstacle_variable}
        "the CUDA code needs a GPU of compute capability ${oldest} or newer, and the one that is present has ${left_out}"
        PARENT_SCOPE)
      return()
    endif()
  endif()

  if(with_90a AND given_by STREQUAL "TORCH_CUDA_ARCH_LIST" AND kept MATCHES "(^|;)90(-real)?(;|$)"
      AND NOT kept MATCHES "90a")
    message(STATUS "${PROJECT_NAME}: building for 9.0a as well as 9.0, because only 9.0a has Hopper's wgmma instructions")
    list(APPEND kept 90a-real)
  endif()
  # PTX for 90a would only run where its machine code does.
  list(TRANSFORM kept REPLACE "^([0-9]+a)$" "\\1-real")
  set(${architectures_variable} "${kept}" PARENT_SCOPE)
endfunction()

# Translates PyTorch's format, "8.0 9.0a+PTX", into CMake's.
function(_lltm_read_torch_cuda_arch_list architectures_variable list)
  set(architectures "")
  string(REGEX MATCHALL "[^ ;,]+" entries "${list}")
  foreach(entry IN LISTS entries)
    if(NOT entry MATCHES "^([0-9]+)\\.([0-9][af]?)(\\+PTX)?$")
      message(FATAL_ERROR
        "TORCH_CUDA_ARCH_LIST: expected architectures such as \"8.0 9.0a+PTX\", got ${entry} in \"${list}\".")
    elseif(CMAKE_MATCH_3)
      list(APPEND architectures "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
    else()
      list(APPEND architectures "${CMAKE_MATCH_1}${CMAKE_MATCH_2}-real")
    endif()
  endforeach()
  set(${architectures_variable} "${architectures}" PARENT_SCOPE)
endfunction()
