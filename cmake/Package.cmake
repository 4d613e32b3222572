# Installs the library, its headers and the CMake package.

include(CMakePackageConfigHelpers)

get_target_property(LLTM_TORCH_FOLDER lltm::libtorch LLTM_TORCH_FOLDER)
get_target_property(LLTM_TORCH_VERSION lltm::libtorch LLTM_TORCH_VERSION)
get_target_property(LLTM_TORCH_BUILD lltm::libtorch LLTM_TORCH_BUILD)
get_target_property(built_with_cuda lltm_ops OPERATOR_LIBRARY_CUDA)
set(LLTM_PACKAGE_CUDA "")
if(built_with_cuda)
  get_target_property(LLTM_PACKAGE_CUDA lltm::libtorch LLTM_TORCH_CUDA)
endif()

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/lltm)

install(TARGETS lltm_ops EXPORT lltm-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES
    ${PROJECT_SOURCE_DIR}/include/lltm/lltm.h
    ${PROJECT_SOURCE_DIR}/include/lltm/nn.h
    ${PROJECT_SOURCE_DIR}/include/lltm/recurrent.h
    ${PROJECT_SOURCE_DIR}/include/lltm/recurrent_checks.h
    ${PROJECT_SOURCE_DIR}/include/lltm/registered.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lltm)
install(EXPORT lltm-targets NAMESPACE lltm:: DESTINATION ${package_folder})

configure_package_config_file(cmake/lltm-config.cmake.in ${PROJECT_BINARY_DIR}/generated/lltm-config.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/lltm-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/generated/lltm-config.cmake
  ${PROJECT_BINARY_DIR}/generated/lltm-config-version.cmake
  ${PROJECT_SOURCE_DIR}/cmake/Libtorch.cmake
  ${PROJECT_SOURCE_DIR}/cmake/CudaChoice.cmake
  ${PROJECT_SOURCE_DIR}/cmake/OperatorLibrary.cmake
  DESTINATION ${package_folder})

# What the library was built with, next to the library, to read without loading it.
set(LLTM_JSON_CUDA null)
if(built_with_cuda)
  string(REGEX REPLACE "^([0-9]+\\.[0-9]+).*" "\"\\1\"" LLTM_JSON_CUDA "${CMAKE_CUDA_COMPILER_VERSION}")
endif()
list(TRANSFORM LLTM_BUILT_ARCHITECTURES REPLACE ".+" "\"\\0\"" OUTPUT_VARIABLE LLTM_JSON_ARCHITECTURES)
list(JOIN LLTM_JSON_ARCHITECTURES ", " LLTM_JSON_ARCHITECTURES)
configure_file(cmake/build_info.json.in liblltm_ops.json @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/liblltm_ops.json DESTINATION ${CMAKE_INSTALL_LIBDIR})
