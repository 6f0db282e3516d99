# SPDX-License-Identifier: Apache-2.0
# Writes the lists of what the simulated driver has: what its sources define as SIM_ENTRY or SIM_OLDER, and of the list of
# the driver's entry points those symbols for a per-thread default stream that go with it; and of what cuda.h calls a status.
#
# cmake -DSOURCES=DIRECTORY -DLIST=entry_points.txt -DHEADER=cuda.h -DOUTPUT=... -P simulated_entry_points.cmake
cmake_minimum_required(VERSION 3.25)

file(READ ${LIST} known)
set(entries "")
set(declarations "")
set(older "")
set(per_thread "")
set(older_per_thread "")
set(statuses "")
file(GLOB sources ${SOURCES}/*.cpp)
foreach(source IN LISTS sources)
    file(READ ${source} text)
    string(REGEX MATCHALL "\nSIM_(ENTRY|OLDER)\\([a-z0-9, ]+\\)[ \n]+cu[A-Za-z0-9_]+\\([^{]*{" definitions "${text}")
    foreach(definition IN LISTS definitions)
        string(REGEX MATCH "\\(([a-z]+, )?([0-9]+)\\)[ \n]+(cu[A-Za-z0-9_]+)([^{]*) {" matched "${definition}")
        set(trait ${CMAKE_MATCH_1})
        set(version ${CMAKE_MATCH_2})
        set(symbol ${CMAKE_MATCH_3})
        string(REGEX REPLACE "[ \n]+" " " parameters ${CMAKE_MATCH_4})
        string(REGEX REPLACE "_v[0-9]+$" "" name ${symbol})
        if(trait)
            string(REGEX REPLACE ", $" "" trait ${trait})
            string(APPEND entries " \\\n    X(${name}, ${version}, ${trait})")
            string(APPEND declarations " \\\n    CUresult ${symbol}${parameters};")
            set(versions "(_v[0-9]+)?")
            set(list per_thread)
        else()
            string(APPEND older " \\\n    X(${name}, ${symbol}, ${version})")
            set(versions "")
            set(list older_per_thread)
        endif()
        if(version LESS 7000)
            set(version 7000) # the first that has such streams
        endif()
        if(known MATCHES "[ \n]${symbol}${versions}(_ptds|_ptsz)[ +\n]")
            string(REGEX MATCH "_pt[ds][sz]" suffix "${CMAKE_MATCH_0}")
            string(APPEND ${list} " \\\n    X(${name}, ${symbol}, ${suffix}, ${version})")
        endif()
    endforeach()
endforeach()
file(STRINGS ${HEADER} lines REGEX "^ +CUDA_(SUCCESS|ERROR_[A-Z0-9_]+) +=")
foreach(line IN LISTS lines)
    string(REGEX MATCH "CUDA_[A-Z0-9_]+" name "${line}")
    string(APPEND statuses " \\\n    X(${name})")
endforeach()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT "// Made by simulated_entry_points.cmake.

#pragma once

// X(name, version, trait): `name` as in cuda.h, whose macros give the exported symbol; the CUDA version, as
// cuGetProcAddress counts, from which on that symbol is what the name means.
#define GPU_SLEEP_SIM_ENTRY_POINTS(X)${entries}

// The functions that they are, of this library.
#define GPU_SLEEP_SIM_DECLARATIONS${declarations}

// X(name): the statuses that cuda.h has.
#define GPU_SLEEP_SIM_STATUSES(X)${statuses}

// X(name, symbol, version): symbols that cuda.h does not use for the name.
#define GPU_SLEEP_SIM_OLDER(X)${older}

// X(name, symbol, suffix, version): the symbols, with that suffix, for a per-thread default stream.
#define GPU_SLEEP_SIM_PER_THREAD(X)${per_thread}
#define GPU_SLEEP_SIM_OLDER_PER_THREAD(X)${older_per_thread}
") # keeps an equal file's age
