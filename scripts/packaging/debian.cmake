# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
# Run by CPack between installing and packing: what Debian's policy wants beside what is installed everywhere.
if(NOT CPACK_GENERATOR STREQUAL DEB)
    return()
endif()
set(tree "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr")
set(documents "${tree}/share/doc/gpu-sleep")
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC) # of SOURCE_DATE_EPOCH, if that is set
file(WRITE "${documents}/changelog.Debian" "\
gpu-sleep (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium

  * Made from the sources of version ${CPACK_PACKAGE_VERSION}.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
file(GLOB pages "${tree}/share/man/man*/*")
execute_process(COMMAND gzip -9n ${pages} "${documents}/changelog.Debian" COMMAND_ERROR_IS_FATAL ANY)
file(RENAME "${tree}/share/zsh/site-functions" "${tree}/share/zsh/vendor-completions") # where Debian's zsh looks
