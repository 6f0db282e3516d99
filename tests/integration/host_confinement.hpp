// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What servers do once they have started: they shut themselves in, and give up rights.

#pragma once

#include "support/commanded.hpp"

namespace gpu_sleep::test {

/// chroot DIRECTORY: of the whole process.
Answer change_root(Words& words);

/// own_tmp: the calling thread, which is the first, has an empty /tmp of its own.
Answer have_own_tmp(Words& words);

/// become USER GROUP: all threads, for good.
Answer become_user(Words& words);

/// forbid CALL ERROR: the number of a system call fails with ERROR (a number of errno) from here on, on all
/// threads; with ERROR 0 it ends the process.
Answer forbid_call(Words& words);

} // namespace gpu_sleep::test
