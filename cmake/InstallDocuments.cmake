# Installs the documents: share/doc as doc/, the READMEs of the plugins as plugins/<id>/, and README, ARCHITECTURE and
# CHANGELOG beside them. Links that hold in the source tree are changed to hold there.
install(CODE "set(source \"${PROJECT_SOURCE_DIR}\")
set(build \"${PROJECT_BINARY_DIR}/documents\")
set(destination \"${CMAKE_INSTALL_DATADIR}/backplane\")")
install(CODE [[
  file(REMOVE_RECURSE "${build}")
  file(GLOB documents RELATIVE "${source}" "${source}/*.md" "${source}/share/doc/*.*" "${source}/share/doc/*/*.*"
       "${source}/plugins/*/README.md")
  foreach(document ${documents})
    file(READ "${source}/${document}" text)
    string(REPLACE "](share/" "](" text "${text}")
    string(REPLACE "](../../share/" "](../../" text "${text}")
    if(document MATCHES "^share/")
      string(REPLACE "](../../" "](../" text "${text}")
    endif()
    string(REGEX REPLACE "^share/" "" target "${document}")
    file(WRITE "${build}/${target}" "${text}")
  endforeach()
  file(INSTALL "${build}/" DESTINATION "${CMAKE_INSTALL_PREFIX}/${destination}")
]])
