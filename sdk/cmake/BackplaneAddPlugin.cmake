# backplane_add_plugin(<name> SOURCES <file>... [LINK <library>...] [BUILTIN])
#
# Builds backplane_<name>.so: hidden visibility, one exported symbol, everything resolved at load, no unique symbols
# (they would be shared between copies and forbid unloading). Inside Backplane's own tree the plugin is put where the
# core finds it, and installed; elsewhere it stays in the project's binary folder.
#
# BUILTIN (only in Backplane's own tree) makes it a part of libbackplane instead.

include(${CMAKE_CURRENT_LIST_DIR}/BackplaneCheckPlugin.cmake)

set(BACKPLANE_EXPORT_MAP ${CMAKE_CURRENT_LIST_DIR}/plugin.map)

function(backplane_add_plugin name)
  cmake_parse_arguments(arg "BUILTIN" "" "SOURCES;LINK" ${ARGN})
  set(target backplane_plugin_${name})
  if(arg_BUILTIN)
    add_library(${target} OBJECT ${arg_SOURCES})
    target_compile_definitions(${target} PRIVATE BACKPLANE_BUILTIN_ENTRY=bp_builtin_${name})
    set_property(GLOBAL APPEND PROPERTY BACKPLANE_BUILTINS ${name})
  else()
    add_library(${target} MODULE ${arg_SOURCES})
    set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME backplane_${name}
                          LINK_DEPENDS ${BACKPLANE_EXPORT_MAP})
    target_link_options(${target} PRIVATE -Wl,-z,now -Wl,--version-script=${BACKPLANE_EXPORT_MAP})
    if(BACKPLANE_PLUGIN_OUTPUT_DIR)
      set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${BACKPLANE_PLUGIN_OUTPUT_DIR})
      install(TARGETS ${target} LIBRARY DESTINATION ${BACKPLANE_PLUGIN_INSTALL_DIR})
    endif()
  endif()
  set_target_properties(${target} PROPERTIES C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden
                        VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>)
  target_link_libraries(${target} PRIVATE Backplane::sdk ${arg_LINK})
endfunction()
