// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Questions of tests, which move and are not copied, in a vector.

#pragma once

#include "client/client.hpp"

namespace gpu_sleep::test {

template <class... Each>
std::vector<client::Question> questions(Each... each) {
    std::vector<client::Question> all;
    (all.push_back(std::move(each)), ...);
    return all;
}

} // namespace gpu_sleep::test
