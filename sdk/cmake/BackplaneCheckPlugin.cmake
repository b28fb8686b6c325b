# backplane_check_plugin(<name>)
#
# Adds tests (for CTest) of the plugin that backplane_add_plugin(<name> ...), or a custom target backplane_plugin_<name>
# with the property BACKPLANE_PLUGIN_FILE, builds:
#   <name>.info    `backplane info` loads it, and finds its note and tables in agreement
#   <name>.check   `backplane check` holds it to everything that a backend must do
#
# The command is the one that was installed with the package, else the one in PATH; BACKPLANE_COMMAND names another.

set(BACKPLANE_COMMAND_HINT ${PACKAGE_PREFIX_DIR}/bin) # of the package that includes this

function(backplane_check_plugin name)
  find_program(BACKPLANE_COMMAND backplane HINTS ${BACKPLANE_COMMAND_HINT})
  if(NOT BACKPLANE_COMMAND)
    message(FATAL_ERROR "Cannot find the command `backplane`, which checks the plugin ${name}; set BACKPLANE_COMMAND "
                        "to its path, or BUILD_TESTING to OFF")
  endif()
  set(file $<TARGET_FILE:backplane_plugin_${name}>)
  set(folder $<TARGET_FILE_DIR:backplane_plugin_${name}>)
  get_target_property(named backplane_plugin_${name} BACKPLANE_PLUGIN_FILE)
  if(named)
    set(file ${named})
    get_filename_component(folder ${named} DIRECTORY)
  endif()
  add_test(NAME ${name}.info COMMAND ${BACKPLANE_COMMAND} info ${name})
  set_tests_properties(${name}.info PROPERTIES ENVIRONMENT BACKPLANE_PLUGIN_PATH=${folder} TIMEOUT 60)
  # A Backplane that is too old to have the subcommand still builds the plugin.
  execute_process(COMMAND ${BACKPLANE_COMMAND} check --help RESULT_VARIABLE missing OUTPUT_QUIET ERROR_QUIET)
  if(missing)
    message(STATUS "Skipping the test ${name}.check: ${BACKPLANE_COMMAND} has no subcommand check")
    return()
  endif()
  add_test(NAME ${name}.check COMMAND ${BACKPLANE_COMMAND} check ${file})
  set_tests_properties(${name}.check PROPERTIES TIMEOUT 900)
endfunction()
