// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Lets a failed assertion on a Result show its error.

#pragma once

#include "base/error.hpp"
#include "support/catch.hpp"

namespace Catch {

template <class T>
struct StringMaker<gpu_sleep::Result<T>> {
    static std::string convert(const gpu_sleep::Result<T>& result) {
        if (result) return "success";
        return fmt::format("{}: {}", gpu_sleep::traits(result.error().code).name, result.error().message);
    }
};

} // namespace Catch
