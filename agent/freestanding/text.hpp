// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Texts, for libraries that use no C library.

#pragma once

namespace gpu_sleep::freestanding {

inline bool begins_with(const char* text, const char* with) {
    while (*with != '\0')
        if (*text++ != *with++) return false;
    return true;
}

inline bool is_same(const char* a, const char* b) {
    while (*a != '\0' && *a == *b) {
        ++a;
        ++b;
    }
    return *a == *b;
}

/// The part of a path behind its last slash.
inline const char* file_name(const char* path) {
    const char* name = path;
    for (const char* at = path; *at != '\0'; ++at)
        if (*at == '/') name = at + 1;
    return name;
}

} // namespace gpu_sleep::freestanding
