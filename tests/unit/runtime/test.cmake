# The runtime is a library of examples/ with a JSON parser behind it. Where it is not built, one program says so.
if(TARGET decant_runtime)
  target_link_libraries(${target} PRIVATE decant_runtime)
else()
  file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/no_runtime.cpp"
       "#include <cstdio>\nint main() { std::puts(\"SKIPPED: the example runtime is not built\"); }\n")
  set_target_properties(${target} PROPERTIES SOURCES "${CMAKE_CURRENT_BINARY_DIR}/no_runtime.cpp" LINK_LIBRARIES "")
endif()
