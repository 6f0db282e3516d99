// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking each keeper.

#include "contents/stores.hpp"

namespace gpu_sleep::contents {

Result<SaveOptions> open_stores(Contents& contents, const model::SleepRequest& request,
                                std::vector<std::string>& notes) {
    SaveOptions options;
    for (const auto store : k_stores) GPU_SLEEP_TRY(contents.keeper(store).open(request, options, notes));
    return options;
}

} // namespace gpu_sleep::contents
