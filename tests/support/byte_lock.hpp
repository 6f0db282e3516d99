// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A lock of one byte of a file.

#pragma once

#include <fcntl.h>

namespace gpu_sleep::test {

/// `type`: F_RDLCK, which others can share, or F_WRLCK. Source: fcntl(2).
inline struct flock byte_lock(short type, off_t at) {
    struct flock lock = {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = at;
    lock.l_len = 1;
    return lock;
}

} // namespace gpu_sleep::test
