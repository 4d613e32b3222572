# One test of the installed CMake package. test/CMakeLists.txt passes the test as CASE, and the folders.

cmake_minimum_required(VERSION 3.22)

set(package "${WORK_FOLDER}/moved prefix")
set(case_folder "${WORK_FOLDER}/${CASE}")
# The environment must not tell the consumer where libtorch is.
unset(ENV{CMAKE_PREFIX_PATH})
unset(ENV{Torch_DIR})
unset(ENV{Torch_ROOT})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "failed (${result}): ${command}")
  endif()
endfunction()

set(configure "${CMAKE_COMMAND}" -S "${CONSUMER}" -B "${case_folder}" -G "${GENERATOR}"
  "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}"
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O0) # -O3 takes half as long again

# Configures the consumer, which must fail with this message.
function(expect_refusal sentence)
  execute_process(COMMAND ${configure} ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result EQUAL 0)
    message(FATAL_ERROR "the consumer was configured, but expected: ${sentence}")
  endif()
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(NOT output MATCHES "${sentence}")
    message(FATAL_ERROR "expected: ${sentence}\ngot: ${output}")
  endif()
endfunction()

# Copies the package, replacing `from` in its config.
function(copy_package destination from to)
  file(COPY "${package}/" DESTINATION "${destination}")
  set(config "${destination}/lib/cmake/lltm/lltm-config.cmake")
  file(READ "${config}" text)
  string(REPLACE "${from}" "${to}" changed "${text}")
  if(changed STREQUAL text)
    message(FATAL_ERROR "${config} does not contain ${from}")
  endif()
  file(WRITE "${config}" "${changed}")
endfunction()

file(REMOVE_RECURSE "${case_folder}")

if(CASE STREQUAL "install")
  file(REMOVE_RECURSE "${package}")
  run("${CMAKE_COMMAND}" --install "${BUILD_FOLDER}" --config "${CONFIGURATION}" --prefix "${case_folder}")
  file(RENAME "${case_folder}" "${package}")
  foreach(file IN ITEMS
      lib/liblltm_ops.so lib/liblltm_ops.so.${SOVERSION}
      include/lltm/lltm.h include/lltm/nn.h include/lltm/recurrent.h include/lltm/recurrent_checks.h
      include/lltm/registered.h lib/cmake/lltm/lltm-config.cmake)
    if(NOT EXISTS "${package}/${file}")
      message(FATAL_ERROR "the install has no ${file}")
    endif()
  endforeach()

elseif(CASE STREQUAL "api")
  # CMAKE_PREFIX_PATH only names the package, so libtorch is the one recorded at build time.
  run(${configure} "-DCMAKE_PREFIX_PATH=${package}")
  run("${CMAKE_COMMAND}" --build "${case_folder}" --target all calls_the_api only_checks)
  run("${case_folder}/names_no_symbol")
  run("${case_folder}/calls_the_api")
  # A program that does not link the library says what to do, and runs if the library is preloaded. LD_PRELOAD cannot
  # contain spaces, as the package's path does.
  execute_process(COMMAND "${case_folder}/only_checks" RESULT_VARIABLE result OUTPUT_VARIABLE output)
  if(result EQUAL 0 OR NOT output MATCHES "link lltm::lltm_ops, or set LD_PRELOAD to liblltm_ops.so")
    message(FATAL_ERROR "without the library: ${output}")
  endif()
  file(COPY_FILE "${package}/lib/liblltm_ops.so" "${case_folder}/liblltm_ops.so")
  run("${CMAKE_COMMAND}" -E env "LD_PRELOAD=${case_folder}/liblltm_ops.so" "${case_folder}/only_checks")

elseif(CASE STREQUAL "example")
  run(${configure} "-DCMAKE_PREFIX_PATH=${package}")
  run("${CMAKE_COMMAND}" --build "${case_folder}")
  execute_process(COMMAND "${case_folder}/train" 80 RESULT_VARIABLE result OUTPUT_VARIABLE output)
  if(NOT result EQUAL 0 OR NOT output MATCHES "lltm::LLTM.* 80 +0\\.[0-9]+ .*lltm::LSTM.* 80 +0\\.[0-9]+ .*torch::nn::LSTM.* 80 +0\\.[0-9]+ ")
    message(FATAL_ERROR "expected three trained models, got (${result}): ${output}")
  endif()

elseif(CASE MATCHES "^torch_(before|after)$")
  string(TOUPPER "${CMAKE_MATCH_1}" when)
  # find_package(Torch) fails if PyTorch has CUDA and the machine has no toolkit.
  set(probe "${case_folder}/probe")
  file(WRITE "${probe}/source/CMakeLists.txt"
    "cmake_minimum_required(VERSION 3.22)\nproject(probe CXX)\nfind_package(Torch REQUIRED)\n")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${probe}/source" -B "${probe}/build" -G "${GENERATOR}"
      "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_PREFIX_PATH=${LIBTORCH}"
    RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
  if(NOT result EQUAL 0)
    message("skipped: find_package(Torch) fails by itself on this machine")
    return()
  endif()
  set(ENV{CMAKE_PREFIX_PATH} "${LIBTORCH}")
  run(${configure} "-DCMAKE_PREFIX_PATH=${package}" -DFIND_TORCH=${when})
  run("${CMAKE_COMMAND}" --build "${case_folder}")
  run("${case_folder}/names_no_symbol")

elseif(CASE STREQUAL "other_torch")
  file(READ "${package}/lib/cmake/lltm/lltm-config.cmake" text)
  string(REGEX MATCH "_lltm_built_with \"([0-9.]+)\"" line "${text}")
  set(version "${CMAKE_MATCH_1}")
  copy_package("${case_folder}/copy" "${line}" "_lltm_built_with \"2.12.1\"")
  expect_refusal("was built with PyTorch 2.12.1, and the one found is PyTorch ${version} in "
    "-DCMAKE_PREFIX_PATH=${case_folder}/copy")

elseif(CASE STREQUAL "other_cuda")
  file(READ "${package}/lib/cmake/lltm/lltm-config.cmake" text)
  string(REGEX MATCH "_lltm_built_with_cuda \"[0-9]*\"" line "${text}")
  copy_package("${case_folder}/copy" "${line}" "_lltm_built_with_cuda \"99\"")
  expect_refusal("was built with CUDA 99, and the PyTorch found in .* is one (with CUDA [0-9]+|without CUDA): "
    "-DCMAKE_PREFIX_PATH=${case_folder}/copy")

elseif(CASE STREQUAL "components")
  expect_refusal("the package has no components, and cuda is required" "-DCMAKE_PREFIX_PATH=${package}" -DCOMPONENTS=cuda)

elseif(CASE STREQUAL "unsupported_torch")
  set(fake "${case_folder}/libtorch/share/cmake/Torch")
  file(WRITE "${fake}/TorchConfig.cmake" "")
  set(ENV{CMAKE_PREFIX_PATH} "${case_folder}/libtorch")
  foreach(version IN ITEMS 2.10.0 2.16.0)
    file(WRITE "${fake}/TorchConfigVersion.cmake" "set(PACKAGE_VERSION \"${version}\")\n")
    expect_refusal("PyTorch ${version} in .* is not supported: lltm needs torch>="
      "-DCMAKE_PREFIX_PATH=${package}")
  endforeach()

elseif(CASE STREQUAL "wrong_torch_dir")
  expect_refusal("Torch_DIR names ${case_folder}, which contains no TorchConfig.cmake"
    "-DCMAKE_PREFIX_PATH=${package}" "-DTorch_DIR=${case_folder}")

elseif(CASE STREQUAL "no_torch")
  copy_package("${case_folder}/copy" "${LIBTORCH}" "${case_folder}/gone")
  expect_refusal("found no libtorch: neither Torch_DIR nor CMAKE_PREFIX_PATH names one, and /bin/false has no torch"
    "-DCMAKE_PREFIX_PATH=${case_folder}/copy" -DPython_EXECUTABLE=/bin/false)

else()
  message(FATAL_ERROR "unknown case ${CASE}")
endif()
