# SPDX-License-Identifier: Apache-2.0
# Installing, and being found: the agent and its header, for CMake (find_package(gpu-sleep), target gpu-sleep::agent)
# and pkg-config (gpu-sleep). Both find their files relative to themselves, so an installed tree may be moved. The run path
# alone that pkg-config gives names the prefix: relative to the file it would name its folder, which programs do not need.
# tests/integration/consumer uses what is installed here.
include(CMakePackageConfigHelpers)

add_library(gpu-sleep::agent ALIAS gpu-sleep-agent)
install(DIRECTORY include/gpu_sleep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS gpu-sleep-agent
    EXPORT gpu-sleep-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS gpu-sleep-audit gpu-sleep-login LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
# For scripts/packaging/wheel only.
install(TARGETS torch_memory_saver_preload torch_memory_saver_torch
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT torch_memory_saver EXCLUDE_FROM_ALL)
install(TARGETS gpu-sleep-outside RUNTIME DESTINATION ${CMAKE_INSTALL_LIBDIR}) # beside the agent, which finds it there
install(FILES $<TARGET_FILE_DIR:gpu-sleep-login>/gpu-sleep.preload DESTINATION ${CMAKE_INSTALL_LIBDIR})

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gpu-sleep)
install(EXPORT gpu-sleep-targets NAMESPACE gpu-sleep:: DESTINATION ${config_dir})
configure_package_config_file(scripts/packaging/gpu-sleep-config.cmake.in ${PROJECT_BINARY_DIR}/gpu-sleep-config.cmake
    INSTALL_DESTINATION ${config_dir}
    NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gpu-sleep-config-version.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES
    ${PROJECT_BINARY_DIR}/gpu-sleep-config.cmake
    ${PROJECT_BINARY_DIR}/gpu-sleep-config-version.cmake
    DESTINATION ${config_dir})

set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(prefix_from_pkgconfig /)
cmake_path(RELATIVE_PATH prefix_from_pkgconfig BASE_DIRECTORY /${pkgconfig_dir})
set(GPU_SLEEP_PREFIX "@GPU_SLEEP_PREFIX@") # the installation alone knows it
configure_file(scripts/packaging/gpu-sleep.pc.in ${PROJECT_BINARY_DIR}/gpu-sleep.pc.in @ONLY)
install(CODE "
    set(GPU_SLEEP_PREFIX \"\${CMAKE_INSTALL_PREFIX}\")
    configure_file(\"${PROJECT_BINARY_DIR}/gpu-sleep.pc.in\" \"${PROJECT_BINARY_DIR}/gpu-sleep.pc\" @ONLY)")
install(FILES ${PROJECT_BINARY_DIR}/gpu-sleep.pc DESTINATION ${pkgconfig_dir})

# The Python package, for PYTHONPATH; in place of the tree's _installed.py it has one that says where the rest is.
set(python_dir ${CMAKE_INSTALL_DATADIR}/gpu-sleep/python)
file(RELATIVE_PATH libraries_from_package /${python_dir}/gpu_sleep /${CMAKE_INSTALL_LIBDIR})
file(RELATIVE_PATH commands_from_package /${python_dir}/gpu_sleep /${CMAKE_INSTALL_BINDIR})
configure_file(scripts/packaging/_installed.py.in ${PROJECT_BINARY_DIR}/_installed.py @ONLY)
install(DIRECTORY agent/python/gpu_sleep DESTINATION ${python_dir}
    FILES_MATCHING PATTERN *.py PATTERN py.typed PATTERN _installed.py EXCLUDE PATTERN __pycache__ EXCLUDE)
install(FILES ${PROJECT_BINARY_DIR}/_installed.py DESTINATION ${python_dir}/gpu_sleep)

# What scripts/packaging/packages makes of this: .deb, .rpm and .tar.gz, all of the same list, without what is for the wheel.
set(CPACK_PACKAGE_NAME gpu-sleep)
set(CPACK_PACKAGE_VENDOR "the gpu-sleep authors")
set(CPACK_PACKAGE_CONTACT "the gpu-sleep authors <gpu-sleep@localhost>") # packages takes another from DEBEMAIL
set(CPACK_PACKAGE_DESCRIPTION "\
Takes the GPU memory of a running program, keeps its contents in host memory or
files, and gives it back at the same addresses: model servers take turns on a
GPU, a trainer generates in between, idle notebooks free it and stay alive.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
# Else the units in the archive name commands in the folder where it is made.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_CMAKE_PROJECTS "${PROJECT_BINARY_DIR};${PROJECT_NAME};Unspecified;/")
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/scripts/packaging/debian.cmake)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/scripts/packaging/triggers ${PROJECT_SOURCE_DIR}/scripts/packaging/prerm)
set(CPACK_RPM_PRE_UNINSTALL_SCRIPT_FILE ${PROJECT_SOURCE_DIR}/scripts/packaging/prerm)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS python3)
set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_PACKAGE_LICENSE "Apache-2.0 AND BSD-3-Clause AND MIT") # the wheel takes it from here, too

# What is built contains code of other libraries, whose licences want to be told of.
set(microhttpd_stanzas "")
if(contained_microhttpd) # section 6 of its licence
    string(APPEND CPACK_RPM_PACKAGE_LICENSE " AND LGPL-2.1-or-later")
    file(STRINGS ${contained_microhttpd} version REGEX "^[0-9]+[.][0-9]+[.][0-9]+$" LIMIT_COUNT 1)
    cmake_host_system_information(RESULT system QUERY DISTRIB_PRETTY_NAME)
    set(microhttpd_stanzas "
Files: */gpu-sleep-http
Copyright: the gpu-sleep authors and those named above, 2007-2021 Christian Grothoff, 2015-2019 Evgeny Grin,
 2020 Silvio Clecio (microhttpd)
License: Apache-2.0 and BSD-3-clause and Expat and LGPL-2.1+
Comment:
 gpu-sleep-http contains libmicrohttpd ${version}, which is under the GNU Lesser
 General Public License, version 2.1 or later. objcopy has made the names of
 GnuTLS in it weak, and nothing else was changed. Its source:
 https://ftp.gnu.org/gnu/libmicrohttpd/libmicrohttpd-${version}.tar.gz
 or the source package of the system that it was taken from, ${system}.
 To exchange it, build gpu-sleep from its sources with -DMICROHTTPD=FILE.

License: LGPL-2.1+
 The text is in LGPL-2.1 beside this file.
")
    find_file(MICROHTTPD_LICENSE LGPL-2.1 PATHS /usr/share/common-licenses NO_DEFAULT_PATH)
    if(NOT version)
        install(CODE "message(FATAL_ERROR \"the door contains libmicrohttpd, and ${contained_microhttpd} does not say which version: name the shared library by -DMICROHTTPD=FILE\")")
    elseif(NOT MICROHTTPD_LICENSE)
        install(CODE "message(FATAL_ERROR \"the door contains libmicrohttpd: name the text of the LGPL 2.1 by -DMICROHTTPD_LICENSE=FILE\")")
    else()
        install(FILES ${MICROHTTPD_LICENSE} DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME LGPL-2.1)
    endif()
endif()
configure_file(scripts/packaging/copyright.in ${PROJECT_BINARY_DIR}/copyright @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/copyright LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Last: it lists all that is installed above.
install(PROGRAMS scripts/uninstall DESTINATION share/gpu-sleep)
install(CODE "set(BUILD_DIR \"${PROJECT_BINARY_DIR}\")\ninclude(\"${PROJECT_SOURCE_DIR}/scripts/packaging/manifest.cmake\")")
include(CPack)
