# With BACKPLANE_BUNDLE, `cpack` makes an archive that runs without installed dependencies: the install tree, the
# libraries it needs except libc and its parts, and tools/gpu-check.
option(BACKPLANE_BUNDLE "Let cpack make an archive that needs nothing else installed" OFF)
if(NOT BACKPLANE_BUNDLE)
  return()
endif()

set(bundled $<TARGET_FILE:backplane_command>)
foreach(plugin zmq gloo shm nccl tensorpipe)
  if(TARGET backplane_plugin_${plugin})
    list(APPEND bundled $<TARGET_FILE:backplane_plugin_${plugin}>)
  endif()
endforeach()
install(CODE "set(bundled ${bundled})")
install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${bundled} RESOLVED_DEPENDENCIES_VAR needed
       PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv)\\.so" "^libbackplane")
  foreach(library ${needed})
    file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/bundled" TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN
         FILES "${library}")
  endforeach()
]])
install(PROGRAMS ${PROJECT_SOURCE_DIR}/tools/gpu-check DESTINATION .)

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_FILE_NAME backplane-gpu-check)
set(CPACK_STRIP_FILES ON)
include(CPack)
