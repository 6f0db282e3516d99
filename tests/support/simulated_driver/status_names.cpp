// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The names of statuses.

#include "support/simulated_driver/entry.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>

namespace gpu_sleep::sim {
namespace {

struct Status {
    CUresult status;
    const char* name;
};

#define GPU_SLEEP_SIM_STATUS(name) Status{name, #name},
constexpr std::array k_statuses = {GPU_SLEEP_SIM_STATUSES(GPU_SLEEP_SIM_STATUS)};

const Status* find(CUresult status) {
    const auto* found = std::find_if(k_statuses.begin(), k_statuses.end(),
                                     [=](const Status& s) { return s.status == status; });
    return found == k_statuses.end() ? nullptr : found;
}

/// "CUDA_ERROR_OUT_OF_MEMORY" as "out of memory".
std::string sentence(std::string_view name) {
    name.remove_prefix(
        std::min(name.find("ERROR_") == name.npos ? name.find('_') + 1 : std::size_t{11}, name.size()));
    std::string text(name);
    for (auto& letter : text)
        letter = letter == '_' ? ' ' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    return text;
}

CUresult answer(const char** text, const char* found) {
    *text = found;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

} // namespace
} // namespace gpu_sleep::sim

SIM_ENTRY(early, 6000) cuGetErrorName(Call&, CUresult status, const char** text) {
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    const auto* found = find(status);
    return answer(text, found ? found->name : nullptr);
}

SIM_ENTRY(early, 6000) cuGetErrorString(Call&, CUresult status, const char** text) {
    static const auto& sentences = *new auto([] {
        std::array<std::string, k_statuses.size()> made;
        std::transform(k_statuses.begin(), k_statuses.end(), made.begin(),
                       [](const Status& s) { return sentence(s.name); });
        return made;
    }());

    if (!text) return CUDA_ERROR_INVALID_VALUE;
    const auto* found = find(status);
    return answer(text,
                  found ? sentences[static_cast<std::size_t>(found - k_statuses.data())].c_str() : nullptr);
}
