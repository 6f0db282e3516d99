// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Stands for another tool that uses the driver's checkpoint: checkpoint_steps PID restore|unlock...

#include <cuda.h>

#include <cstdlib>
#include <string>

int main(int count, char** words) {
    if (count < 3 || cuInit(0) != CUDA_SUCCESS) return 2;
    const int pid = std::atoi(words[1]);
    for (int i = 2; i < count; ++i) {
        const auto status = std::string(words[i]) == "restore" ? cuCheckpointProcessRestore(pid, nullptr)
                                                               : cuCheckpointProcessUnlock(pid, nullptr);
        if (status != CUDA_SUCCESS) return 1;
    }
    return 0;
}
