# Install rules of headers, libraries and the CMake package. Plugins, the command and share/ have their own. All paths
# are relative to the prefix, so an installed tree can be moved.
include(CMakePackageConfigHelpers)

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development) # the packages of Package.cmake
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Backplane)
set(exported backplane_abi backplane_base backplane_sdk backplane)
foreach(optional backplane_conformance)
  if(TARGET ${optional})
    list(APPEND exported ${optional})
  endif()
endforeach()

# The C++ headers require C++20 in projects that use the package.
target_compile_features(backplane INTERFACE cxx_std_20)
install(TARGETS ${exported} EXPORT BackplaneTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT BackplaneTargets NAMESPACE Backplane:: DESTINATION ${package_dir})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/BackplaneConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/BackplaneConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/BackplaneConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/BackplaneConfig.cmake ${PROJECT_BINARY_DIR}/BackplaneConfigVersion.cmake
        DESTINATION ${package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/sdk/cmake/ DESTINATION ${package_dir})
