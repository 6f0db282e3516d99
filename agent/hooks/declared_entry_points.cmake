# SPDX-License-Identifier: Apache-2.0
# Holds the one list of the driver's entry points against the cuda.h that is there, and writes what both have: an older
# header lacks some, which are left out, and a newer one has more, which are named. To the agent both are unknown entry
# points: see hooks/lookup.cpp. With more of them the product is built, but not its tests.
#
# cmake -DCOMPILER=... -DINCLUDES=DIRECTORY[;...] -DLIST=entry_points.txt -DOUTPUT=... -P declared_entry_points.cmake
cmake_minimum_required(VERSION 3.25)

list(TRANSFORM INCLUDES PREPEND -I)
file(WRITE ${OUTPUT}.cpp "#include <cuda.h>\n")
execute_process(
    COMMAND ${COMPILER} -E -P -D__CUDA_API_VERSION_INTERNAL -D__CUDA_API_VERSION_INTERNAL_ODR ${INCLUDES} ${OUTPUT}.cpp
    OUTPUT_VARIABLE header COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "CUresult[ \t\r\n]+cu[A-Z][A-Za-z0-9_]*[ \t\r\n]*\\(" declared "${header}")
list(TRANSFORM declared REPLACE "^CUresult[ \t\r\n]+(cu[A-Za-z0-9_]*).*" "\\1")
list(LENGTH declared count)
if(count EQUAL 0)
    message(FATAL_ERROR "cuda.h in ${INCLUDES} declares no entry point of the driver")
endif()
foreach(name IN LISTS declared)
    set(is_declared_${name} TRUE)
endforeach()

set(intercepted "")
set(with_cuda_h "")
set(harmless "")
set(guards "")
set(groups "")
set(shared "")
set(listed "")
set(lacking "")
file(STRINGS ${LIST} lines REGEX "^[^#]")
foreach(line IN LISTS lines)
    if(line MATCHES "^([a-z]+)(, own( by ([a-z_]+))?(, passes)?)?:$")
        set(class ${CMAKE_MATCH_1})
        set(group "${CMAKE_MATCH_4}")
        if(CMAKE_MATCH_2)
            string(REGEX REPLACE " by [a-z_]+" "_shared" hook "${CMAKE_MATCH_2}")
            string(REGEX REPLACE "^, (.*)" "\\1" hook "${hook}")
            string(REPLACE ", " "_" hook "${hook}")
        elseif(class STREQUAL "asks")
            set(hook asking)
        else()
            set(hook forwarding)
        endif()
        continue()
    endif()
    string(REGEX MATCHALL "cu[A-Za-z0-9_]+" names "${line}")
    list(APPEND listed ${names})
    foreach(name IN LISTS names)
        if(class STREQUAL "harmless")
            string(APPEND harmless " \\\n    X(${name})")
            continue()
        endif()
        string(APPEND intercepted " \\\n    X(${name}, ${class}, ${hook})")
        if(group)
            list(APPEND groups ${group})
        endif()
        if(is_declared_${name})
            string(APPEND of_group_${group} " \\\n    X(${name}, __VA_ARGS__)")
            string(APPEND with_cuda_h " \\\n    X(${name}, ${class}, ${hook})")
            string(APPEND guards "#define GPU_SLEEP_HAS_${name}\n")
        else()
            list(APPEND lacking ${name})
        endif()
    endforeach()
endforeach()

list(REMOVE_DUPLICATES groups)
foreach(group IN LISTS groups)
    string(APPEND shared "#define GPU_SLEEP_SHARED_${group}(X, ...)${of_group_${group}}\n")
endforeach()

set(unclassed ${declared})
list(REMOVE_ITEM unclassed ${listed})
foreach(kind lacking unclassed)
    list(REMOVE_DUPLICATES ${kind})
    list(SORT ${kind})
    list(JOIN ${kind} " " ${kind})
endforeach()
if(unclassed)
    string(APPEND guards "#define GPU_SLEEP_UNCLASSED \"${unclassed}\"\n")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT "// Made by declared_entry_points.cmake of entry_points.txt.

#pragma once

// X(name, class, hook): of what is intercepted; the class is a gate::Touch.
#define GPU_SLEEP_INTERCEPTED(X)${intercepted}

// Those that cuda.h declares.
#define GPU_SLEEP_DECLARED(X)${with_cuda_h}

// X(name)
#define GPU_SLEEP_HARMLESS(X)${harmless}

// X(name, ...): of those that cuda.h declares, the groups whose hooks are of one function template.
${shared}
${guards}") # keeps an equal file's age
if(lacking)
    message(NOTICE "cuda.h is older than the list of entry points. Built without: ${lacking}")
endif()
if(unclassed)
    message(NOTICE "cuda.h is newer than the list of entry points. Not intercepted: ${unclassed}")
endif()
if(lacking OR unclassed)
    message(NOTICE "A program that calls one of these is put to sleep with --force alone.")
endif()
