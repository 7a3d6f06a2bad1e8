# What is installed: the command with its manual pages and completion (made by the command itself), the library with headers, pkg-config and
# CMake files. The library is static; its dependencies are named by the pkg-config file, which the CMake package reads.
set(pages ${CMAKE_BINARY_DIR}/share)
set(outputs ${pages}/understudy.1 ${pages}/understudy.bash ${pages}/_understudy ${pages}/understudy.fish)
set(commands
  COMMAND understudy man > understudy.1
  COMMAND understudy completion bash > understudy.bash
  COMMAND understudy completion zsh > _understudy
  COMMAND understudy completion fish > understudy.fish)
set(manual ${pages}/understudy.1)
foreach(name ${US_COMMANDS})
  string(REPLACE "_" "-" name ${name})
  list(APPEND outputs ${pages}/understudy-${name}.1)
  list(APPEND manual ${pages}/understudy-${name}.1)
  list(APPEND commands COMMAND understudy man ${name} > understudy-${name}.1)
endforeach()
file(MAKE_DIRECTORY ${pages})
# A fuzzer build has no command worth describing, and a leak checker would judge it here.
if(NOT US_FUZZ AND NOT US_SANITIZE)
  add_custom_command(OUTPUT ${outputs} ${commands} DEPENDS understudy WORKING_DIRECTORY ${pages} VERBATIM COMMENT "Manual pages and completion")
  add_custom_target(pages ALL DEPENDS ${outputs})
  install(FILES ${manual} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${pages}/understudy.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME understudy)
  install(FILES ${pages}/_understudy DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${pages}/understudy.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()

install(TARGETS understudy RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS understudy_lib ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/understudy DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The prefix is where the file lies, so that a moved installation still works.
file(RELATIVE_PATH US_PC_TO_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" US_PC_TO_PREFIX "${US_PC_TO_PREFIX}")
configure_file(cmake/understudy.pc.in ${CMAKE_BINARY_DIR}/understudy.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/understudy.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/understudy-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/understudy-config.cmake ${CMAKE_BINARY_DIR}/understudy-config-version.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/understudy)
