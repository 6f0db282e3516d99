# SPDX-License-Identifier: Apache-2.0
# Run by the installation, which alone knows the prefix: writes FILES from SOURCE to WRITTEN with the directory of the
# commands, BINDIR beneath the prefix, as it will be.
get_filename_component(GPU_SLEEP_BINDIR "${BINDIR}" ABSOLUTE BASE_DIR "${CMAKE_INSTALL_PREFIX}")
foreach(file IN LISTS FILES)
    configure_file(${SOURCE}/${file}.in ${WRITTEN}/${file} @ONLY)
endforeach()
