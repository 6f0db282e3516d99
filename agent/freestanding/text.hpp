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

/// The text behind this one, in a list of texts of which each has a zero at its end.
inline const char* next(const char* text) {
    while (*text++ != '\0') {
    }
    return text;
}

/// The part of a path behind its last slash.
inline const char* file_name(const char* path) {
    const char* name = path;
    for (const char* at = path; *at != '\0'; ++at)
        if (*at == '/') name = at + 1;
    return name;
}

/// Whether it may be the name of an entry point of libcuda. `name` may be null.
inline bool is_entry_point(const char* name) {
    return name && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

} // namespace gpu_sleep::freestanding
