# `cpack` makes Debian packages from the preset `deb`, or, with BACKPLANE_BUNDLE, the archive of tools/gpu-check.
option(BACKPLANE_BUNDLE "cpack makes an archive that needs nothing else installed" OFF)

set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR Backplane)
set(CPACK_STRIP_FILES ON)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)

# The install tree, the libraries that it needs except libc and its parts, and gpu-check, which finds its way in it.
if(BACKPLANE_BUNDLE)
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
  include(CPack)
  return()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_VERSION ${PROJECT_VERSION})
if(BACKPLANE_PRERELEASE)
  string(APPEND CPACK_DEBIAN_PACKAGE_VERSION "~${BACKPLANE_PRERELEASE}") # sorts before the release
endif()
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The Backplane developers <backplane@localhost>")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(same_version "(= ${CPACK_DEBIAN_PACKAGE_VERSION})")

# backplane_package(component name section summary [DEPENDS text] [RECOMMENDS text] [SUGGESTS text])
set(CPACK_COMPONENTS_ALL)
macro(backplane_package component name section summary)
  cmake_parse_arguments(arg "" "DEPENDS;RECOMMENDS;SUGGESTS" "" ${ARGN})
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${summary}")
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${arg_DEPENDS}")
  set(CPACK_DEBIAN_${upper}_PACKAGE_RECOMMENDS "${arg_RECOMMENDS}")
  set(CPACK_DEBIAN_${upper}_PACKAGE_SUGGESTS "${arg_SUGGESTS}")
endmacro()

set(recommended "")
set(suggested "")
foreach(plugin gloo zmq tensorpipe)
  if(TARGET backplane_plugin_${plugin})
    backplane_package(${plugin} backplane-plugin-${plugin} libs "Backplane's communication backend ${plugin}"
                      DEPENDS "libbackplane1 ${same_version}")
    if(plugin STREQUAL tensorpipe)
      list(APPEND suggested backplane-plugin-${plugin})
    else()
      list(APPEND recommended backplane-plugin-${plugin})
    endif()
  endif()
endforeach()
list(JOIN recommended ", " recommended)
list(JOIN suggested ", " suggested)
backplane_package(library libbackplane1 libs "Process groups and RPC over communication backends as plugins"
                  RECOMMENDS "${recommended}" SUGGESTS "${suggested}")
backplane_package(development libbackplane-dev libdevel "Backplane's headers, CMake package, examples and documentation"
                  DEPENDS "libbackplane1 ${same_version}" RECOMMENDS "backplane-tools, cmake"
                  SUGGESTS libmsgpack-cxx-dev)
if(BACKPLANE_TOOLS)
  backplane_package(tools backplane-tools utils "Launcher, benchmark and conformance check for Backplane"
                    DEPENDS "libbackplane1 ${same_version}" RECOMMENDS "${recommended}")
endif()
include(CPack)
