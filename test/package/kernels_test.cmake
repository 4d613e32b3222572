# The objects of the kernels name no symbol of PyTorch. test/CMakeLists.txt passes NM and OBJECTS.
cmake_minimum_required(VERSION 3.22)

if(NOT OBJECTS)
  message(FATAL_ERROR "there are no objects of kernels")
endif()
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND "${NM}" --undefined-only "${object}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  # Mangled names of PyTorch's namespaces. A function of ours may have one of its types as an argument.
  string(REGEX MATCHALL "_Z[A-Z]*N?K?(2at|3c10|5torch|6caffe2)[^\n]*" found "${symbols}")
  if(found)
    list(JOIN found "\n  " found)
    message(SEND_ERROR "${object} names symbols of PyTorch:\n  ${found}")
  endif()
endforeach()
