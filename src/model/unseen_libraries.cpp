// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of libraries that use the GPU unseen, and finding them in a list of mappings.

#include "model/unseen_libraries.hpp"

#include "base/files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace gpu_sleep::model {
namespace {

constexpr std::string_view k_decoding = "video decoding";

struct Row {
    std::string_view name; ///< up to the version; a name that begins with '/' is a device's, up to its number
    std::string_view use;
};

// Libraries that a program loads only to use them. Not here: libnvidia-ptxjitcompiler, libnvidia-nvvm,
// libnvidia-gpucomp and libnvidia-ml, which work for others or do not use the GPU; libcufile, which PyTorch
// always loads. That one works through libcuda, but for the buffers that its device shows.
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

bool is_meant(const Row& row, const Mapping& mapping) {
    if (row.name.starts_with('/')) return mapping.file.starts_with(row.name);
    return mapping.runs && mapping.is_of(row.name);
}

} // namespace

bool Mapping::is_of(std::string_view library) const {
    const auto rest = name().substr(std::min(library.size(), name().size()));
    return name().starts_with(library) && (rest.empty() || rest.front() == '.');
}

std::vector<Mapping> parse_mappings(std::string_view text) {
    constexpr std::string_view k_deleted = " (deleted)"; // the driver was replaced since
    std::vector<Mapping> all;
    // "7f1c00000000-7f1c00010000 r-xp 00001000 08:01 1234   /usr/lib/libx.so.1 (deleted)"
    while (const auto line = take_line(text)) {
        const auto before_file = line->find(" /");
        if (before_file == std::string_view::npos) continue;
        Mapping mapping;
        const auto* const end = line->data() + before_file;
        const auto after = [end](const char* at, std::ptrdiff_t bytes) {
            return at + std::min(bytes, end - at);
        };
        const char* at = std::from_chars(line->data(), end, mapping.begin, 16).ptr;
        at = std::from_chars(after(at, 1), end, mapping.end, 16).ptr;
        mapping.runs = std::string_view(at, end).starts_with(" r-x");
        std::from_chars(after(at, std::string_view(" r-xp ").size()), end, mapping.offset, 16);
        mapping.file = line->substr(before_file + 1);
        if (mapping.file.ends_with(k_deleted)) mapping.file.remove_suffix(k_deleted.size());
        all.push_back(mapping);
    }
    return all;
}

std::vector<UnseenUse> unseen_libraries(std::string_view mappings) {
    std::array<std::vector<UnseenUse>, k_rows.size()> found;
    std::vector<UnseenUse> all;
    std::optional<Mapping> driver;
    bool is_audited = false;
    for (const auto& mapping : parse_mappings(mappings)) {
        for (std::size_t i = 0; i < k_rows.size(); ++i) {
            if (!is_meant(k_rows[i], mapping)) continue;
            UnseenUse library{k_rows[i].use, std::string(mapping.name())};
            if (std::find(found[i].begin(), found[i].end(), library) == found[i].end())
                found[i].push_back(std::move(library));
        }
        is_audited |= mapping.is_of("libgpu-sleep-audit.so");
        // WSL has a driver that loads another of that name.
        if (!mapping.runs || !mapping.is_of(k_driver_library) || mapping.file.starts_with("/usr/lib/wsl/"))
            continue;
        if (!driver) driver = mapping;
        // One copy may lie in several mappings: of several places in its file.
        else if (mapping.file != driver->file || mapping.offset == driver->offset)
            all = {{"a second CUDA driver, which needs gpu-run --audit", std::string(mapping.name())}};
    }
    if (is_audited) all.clear();
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
