# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
# Run by the installation when all is in place: lists it in the prefix, for scripts/uninstall, and notes the prefix in BUILD_DIR.
# What an earlier version has installed there and this one has not stays on the list. Packages have lists of their own.
set(prefix "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
if(NOT prefix MATCHES "/_CPack_Packages/")
    set(manifest "${prefix}/share/gpu-sleep/install_manifest.txt")
    set(files "")
    if(EXISTS "${manifest}")
        file(STRINGS "${manifest}" files ENCODING UTF-8)
    endif()
    foreach(file IN LISTS CMAKE_INSTALL_MANIFEST_FILES)
        cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}")
        if(NOT file MATCHES "^[.][.]/")
            list(APPEND files "${file}")
        endif()
    endforeach()
    list(SORT files)
    list(REMOVE_DUPLICATES files)
    list(JOIN files "\n" lines)
    file(WRITE "${manifest}" "${lines}\n")
    file(APPEND "${BUILD_DIR}/install_prefixes.txt" "${prefix}\n")
endif()
