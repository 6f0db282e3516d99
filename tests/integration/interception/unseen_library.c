// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A library with the name of one whose use of the GPU cannot be seen; it does nothing.

int unseen_library(void);
int unseen_library(void) {
    return 0;
}
