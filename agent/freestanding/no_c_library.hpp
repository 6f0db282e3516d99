// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Texts, and reading files, for libraries that use no C library.

#pragma once

#include <fcntl.h>
#include <sys/syscall.h>

#include <cstddef>

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

/// A system call of up to four arguments: its value, or less than 0. Source: syscall(2).
inline long system_call(long number, long a, long b = 0, long c = 0, long d = 0) {
#if defined(__x86_64__)
    long value = number;
    register long fourth asm("r10") = d;
    asm volatile("syscall" : "+a"(value) : "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return value;
#elif defined(__aarch64__)
    register long value asm("x0") = a;
    register long second asm("x1") = b;
    register long third asm("x2") = c;
    register long fourth asm("x3") = d;
    register long call asm("x8") = number;
    asm volatile("svc 0" : "+r"(value) : "r"(second), "r"(third), "r"(fourth), "r"(call) : "memory");
    return value;
#else
#error "say how this machine calls the system"
#endif
}

/// A descriptor, or less than 0. It never waits, as for the other end of a pipe.
inline int open_to_read(const char* path) {
    return static_cast<int>(system_call(SYS_openat, AT_FDCWD, reinterpret_cast<long>(path),
                                        O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
}
/// The number of bytes, 0 at the end, or less than 0.
inline long read_some(int fd, char* bytes, std::size_t size) {
    return system_call(SYS_read, fd, reinterpret_cast<long>(bytes), static_cast<long>(size));
}
inline void close_file(int fd) {
    system_call(SYS_close, fd);
}
/// Returns the target of a link, ended by a zero; empty if there is no link, or no room.
template <std::size_t size>
void read_link(const char* path, char (&target)[size]) {
    const long length = system_call(SYS_readlinkat, AT_FDCWD, reinterpret_cast<long>(path),
                                    reinterpret_cast<long>(target), static_cast<long>(size));
    target[length > 0 && static_cast<std::size_t>(length) < size ? length : 0] = '\0';
}

} // namespace gpu_sleep::freestanding
