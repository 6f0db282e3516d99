// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What test objects have in common that take something back at their end.

#pragma once

namespace gpu_sleep::test {

/// A base of objects that are neither copied nor moved.
struct NotCopied {
    NotCopied() = default;
    NotCopied(const NotCopied&) = delete;
    NotCopied& operator=(const NotCopied&) = delete;
};

} // namespace gpu_sleep::test
