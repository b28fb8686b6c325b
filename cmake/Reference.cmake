# The target `reference`: the C and C++ reference, made from the public headers by Doxygen. Warnings are errors.
find_program(BACKPLANE_DOXYGEN doxygen)
if(NOT BACKPLANE_DOXYGEN)
  backplane_skip("the reference: doxygen not found (Debian: doxygen)")
  return()
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/Doxyfile.in ${PROJECT_BINARY_DIR}/Doxyfile @ONLY)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/reference)
add_custom_target(reference COMMAND ${BACKPLANE_DOXYGEN} ${PROJECT_BINARY_DIR}/Doxyfile
                  WORKING_DIRECTORY ${PROJECT_BINARY_DIR} COMMENT "Generating reference/html" VERBATIM)
if(BACKPLANE_TESTS)
  add_test(NAME reference COMMAND ${BACKPLANE_DOXYGEN} ${PROJECT_BINARY_DIR}/Doxyfile)
  set_tests_properties(reference PROPERTIES LABELS unit TIMEOUT 300)
endif()
