// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of libraries that use the GPU unseen, and finding them in a list of mappings.

#include "model/unseen_libraries.hpp"

#include "base/small_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace gpu_sleep::model {
namespace {

constexpr std::string_view k_decoding = "video decoding";

struct Row {
    std::string_view name; ///< up to the version; a name that begins with '/' is a device's, up to its number
    std::string_view use;
};

// What a program loads only to use it. Not here: libnvidia-ptxjitcompiler, libnvidia-nvvm, libnvidia-gpucomp
// and libnvidia-ml, which work for others or do not use the GPU; libcufile, which PyTorch always loads. That
// one works through libcuda, but for the buffers that its device shows.
constexpr std::array k_rows = {
    Row{"libnvcuvid.so", k_decoding},
    Row{"libvdpau_nvidia.so", k_decoding},
    Row{"libnvidia-encode.so", "video encoding"},
    Row{"libnvidia-opticalflow.so", "optical flow"},
    Row{"libnvidia-fbc.so", "screen capture"},
    Row{"libnvoptix.so", "OptiX"},
    Row{"libnvidia-opencl.so", "OpenCL"},
    Row{"libGLX_nvidia.so", "OpenGL or Vulkan"},
    Row{"libEGL_nvidia.so", "OpenGL or Vulkan"},
    Row{"libnvidia-glcore.so", "OpenGL or Vulkan"},
    Row{"libnvidia-eglcore.so", "OpenGL or Vulkan"},
    Row{"/dev/nvidia-fs", "GPUDirect Storage"},
};

/// One line: the file, and whether it may be executed there, as only a loaded library may.
struct Mapping {
    std::string_view file; ///< empty without one
    bool runs = false;
};

// "7f1c00000000-7f1c00010000 r-xp 00001000 08:01 1234   /usr/lib/libx.so.1 (deleted)"
Mapping parse_line(std::string_view line) {
    constexpr std::string_view k_deleted = " (deleted)"; // the driver was replaced since
    const auto permissions = line.find(' ');
    const auto before_file = line.find(" /");
    if (permissions == std::string_view::npos || before_file == std::string_view::npos) return {};
    auto file = line.substr(before_file + 1);
    if (file.ends_with(k_deleted)) file.remove_suffix(k_deleted.size());
    return {file, line.substr(permissions).starts_with(" r-x")};
}

std::string_view name_of(std::string_view file) {
    return file.substr(file.rfind('/') + 1);
}

bool is_meant(const Row& row, const Mapping& mapping) {
    if (row.name.starts_with('/')) return mapping.file.starts_with(row.name);
    const auto name = name_of(mapping.file);
    const auto rest = name.substr(std::min(row.name.size(), name.size()));
    return mapping.runs && name.starts_with(row.name) && (rest.empty() || rest.front() == '.');
}

} // namespace

std::vector<UnseenUse> unseen_libraries(std::string_view mappings) {
    std::array<std::vector<UnseenUse>, k_rows.size()> found;
    while (const auto line = take_line(mappings)) {
        const auto mapping = parse_line(*line);
        if (mapping.file.empty()) continue;
        for (std::size_t i = 0; i < k_rows.size(); ++i) {
            if (!is_meant(k_rows[i], mapping)) continue;
            UnseenUse library{k_rows[i].use, std::string(name_of(mapping.file))};
            if (std::find(found[i].begin(), found[i].end(), library) == found[i].end())
                found[i].push_back(std::move(library));
        }
    }
    std::vector<UnseenUse> all;
    for (auto& row : found) all.insert(all.end(), row.begin(), row.end());
    return all;
}

std::string why_not_restored(std::span<const UnseenUse> uses) {
    const auto decodes = [](const UnseenUse& use) { return use.use == k_decoding; };
    const auto found = std::find_if(uses.begin(), uses.end(), decodes);
    if (found == uses.end()) return {};
    // Afterwards its decoding fails, or never ends (nvJPEG, driver 580).
    return fmt::format(
        "it has loaded {} for the GPU's video and JPEG decoders, which the driver cannot restore",
        found->name);
}

std::string list_of(std::span<const UnseenUse> uses) {
    constexpr std::size_t k_max_named = 12;
    const auto named = uses.first(std::min(uses.size(), k_max_named));
    std::string text;
    for (std::size_t i = 0; i < named.size(); ++i) {
        const bool goes_on = i > 0 && named[i].use == named[i - 1].use;
        if (i > 0) text += goes_on ? ", " : "), ";
        text += goes_on ? named[i].name : fmt::format("{} ({}", named[i].use, named[i].name);
    }
    if (!text.empty()) text += ')';
    if (uses.size() > k_max_named) text += " and others";
    return text;
}

} // namespace gpu_sleep::model
