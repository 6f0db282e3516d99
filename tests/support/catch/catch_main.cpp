// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The main function of every test program, for either generation of Catch2.

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include <malloc.h>

#include <climits>

int main(int argc, char** argv) {
    // Memory that a test frees is kept for the next: fresh pages take half the time of a test of contents.
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    return Catch::Session().run(argc, argv);
}
