// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Catch2, whichever generation the system has: version 2 is one header, version 3 several.

#pragma once

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#else
#include <catch2/catch.hpp>
#endif
