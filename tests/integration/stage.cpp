// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Copying programs.

#include "stage.hpp"

#include "support/tree.hpp"

namespace gpu_sleep::test {

namespace fs = std::filesystem;

Stage::Stage() {
    REQUIRE(::chmod(directory_.path().c_str(), 0755) == 0);
    for (const auto* program : {"gpu-reclaim", "gpu-sleep", "gpu-wake", "integration_host"})
        fs::copy_file(command_file(program), file(program));
    for (const fs::path library : {agent_file(), command_file("../simulated/libcuda.so.1")})
        fs::copy_file(library, file(library.filename().string()));
}

Launch Stage::launch(Arguments prefix) const {
    prefix.push_back(file("integration_host"));
    return {std::move(prefix), {"LD_LIBRARY_PATH=" + directory_.path().string()}};
}

} // namespace gpu_sleep::test
